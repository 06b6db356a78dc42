"""What decodes, and in how many threads, by device and what is installed."""

import pytest

from gdt.common.errors import UserError
from gdt.pipeline.sources import loading
from gdt.pipeline.sources.loading import Loading, loading_on


def test_dali_decodes_beside_a_gpu_and_the_cores_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "cores", lambda: 16)
    for device, asked, threads, expected in (
        ("cuda", "auto", 0, ("gpu", 16)),
        ("cuda", "cpu", 0, ("cpu", 4)),
        ("cuda", "cpu", 9, ("cpu", 9)),
        ("cpu", "auto", 0, ("cpu", 16)),
        ("cpu", "gpu", 3, ("gpu", 3)),
    ):
        found = loading_on(device, Loading(threads=threads, decoder=asked))  # type: ignore[arg-type]
        assert (found.decoder, found.threads) == expected


def test_the_environment_chooses_for_commands_without_the_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "has_dali", lambda: True)
    monkeypatch.setenv("GDT_DECODER", "cpu")
    assert loading_on("cuda", Loading()).decoder == "cpu"
    assert loading_on("cuda", Loading(decoder="gpu")).decoder == "gpu"
    monkeypatch.setenv("GDT_DECODER", "gpus")
    with pytest.raises(UserError, match="unknown value of GDT_DECODER 'gpus'; did you mean 'gpu'"):
        loading_on("cpu", Loading())


def test_without_dali_the_cores_decode_for_a_gpu_and_say_so_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(loading, "has_dali", lambda: False)
    loading.advise_dali.cache_clear()
    assert [loading_on("cuda", Loading()).decoder for _ in range(2)] == ["cpu", "cpu"]
    assert capsys.readouterr().err.count("pip install 'gdt-video[gpu]'") == 1
    with pytest.raises(UserError, match=r"--loading.decoder gpu needs DALI; run pip install 'gdt-video\[gpu\]'"):
        loading_on("cpu", Loading(decoder="gpu"))
    assert loading_on("cpu", Loading()).decoder == "cpu" and not capsys.readouterr().err
