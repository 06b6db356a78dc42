#: make demo        everything on generated videos, with a report: 6 to 8 minutes on 2 cores, no GPU
#: make test        style, types and all tests except the slow ones
#: make generate    labelled videos in data/videos/synthetic                      [SEED=]
#: make preprocess  videos to shards; again: resume                               [DATASET=kinetics] [SOURCE=]
#: make verify      check shards for damage                                       [DATASET=kinetics]
#: make pretrain    train on shards; again: resume    [DATASET=kinetics] [PRESET=l | FACTORS="..."] [GPUS=] [SEED=]
#:                                                    [STEPS=] [SIZE=paper|tiny]
#: make eval        retrieval, few-shot, k-NN, cross-modal recall, on any data set   [DATASET=] [CKPT="a.pt b.pt";
#:                  default: the latest run] [SEED=]
#: make eval-ucf, make eval-hmdb, make eval-esc50 (sound)   finetuning and linear probes, too           [CKPT=] [SEED=]
#: make factors     which factors move the features                               [DATASET=] [CKPT=]
#: make embed       features of videos                                            [SOURCE=/my/videos | DATASET=] [CKPT=]
#: make ablation    pretrain and compare compositions                             [DATASET=kinetics] [STEPS=] [SIZE=]
#: make report      one HTML page of all runs
#: make show-batch, make show-tree   a composition as clips [DATASET=] [SEED=] [SIZE=], or as pairs   [PRESET=] [FACTORS=]
#: make bench, make bench-gpu        speed, against what others use; check and measure a GPU
#: make oracles     compare numbers with other libraries, which it installs
#: make setup, make lint, make clean
#:
#: ARGS="--option value" passes further options; `.venv/bin/gdt <command> --help` lists them.

SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -c
ifdef CONDA_PREFIX  # an active conda environment is used as it is; otherwise everything goes into .venv
PYTHON := $(CONDA_PREFIX)/bin/python
SETUP := $(CONDA_PREFIX)/.gdt-setup
else
PYTHON := .venv/bin/python
SETUP := .venv/.stamp
endif

# the variables of each target; any other is refused
takes_generate := SEED ARGS
takes_preprocess := DATASET SOURCE ARGS
takes_verify := DATASET ARGS
takes_pretrain := DATASET PRESET FACTORS SEED STEPS SIZE GPUS ARGS
takes_eval := DATASET CKPT SEED ARGS
takes_eval-ucf := CKPT SEED ARGS
takes_eval-hmdb := CKPT SEED ARGS
takes_eval-esc50 := CKPT SEED ARGS
takes_factors := DATASET CKPT ARGS
takes_embed := SOURCE DATASET CKPT ARGS
takes_ablation := DATASET STEPS SIZE ARGS
takes_report := ARGS
takes_show-batch := DATASET SEED SIZE PRESET FACTORS ARGS
takes_show-tree := PRESET FACTORS ARGS
takes_bench-gpu := ARGS
goal := $(firstword $(filter-out setup,$(MAKECMDGOALS)) setup)
typed := $(foreach word,$(subst \ ,,$(MAKEOVERRIDES)),$(firstword $(subst =, ,$(word))))
refused := $(filter-out $(takes_$(goal)) PYTHON SETUP MAKE%,$(typed))
$(if $(refused),$(error 'make $(goal)' has no variable $(refused); it has $(or $(takes_$(goal)),none)))

variables := DATASET SOURCE PRESET FACTORS CKPT SEED STEPS SIZE GPUS
# the environment may hold such names by chance, so only what is typed after make counts
inherited := $(foreach name,$(variables) ARGS,$(if $(filter environment,$(origin $(name))),$(name)))
$(foreach name,$(filter $(inherited),$(takes_$(goal))),$(warning $(name) of the environment is not used: type $(name)=... after make))
$(foreach name,$(inherited),$(eval undefine $(name)))
export $(variables)
options = $(if $(DATASET),--dataset "$$DATASET") $(if $(SOURCE),--source "$$SOURCE") \
  $(if $(PRESET),--preset "$$PRESET") $(if $(FACTORS),--factors "$$FACTORS") $(if $(CKPT),--ckpt $$CKPT) \
  $(if $(SEED),--seed "$$SEED") $(if $(STEPS),--steps "$$STEPS") $(if $(SIZE),--size "$$SIZE") $(ARGS)

gdt := $(PYTHON) -m gdt
# torchrun does not pass on SIGUSR1, and kills its ranks after 30 s, unless told otherwise
ranks := PET_SIGNALS_TO_HANDLE=SIGTERM,SIGINT,SIGUSR1 PET_SHUTDOWN_TIMEOUT=600 $(PYTHON) -m torch.distributed.run --standalone
official := --protocols finetune retrieval few-shot knn linear

.PHONY: help setup demo test lint clean generate preprocess verify pretrain eval eval-ucf eval-hmdb eval-esc50 factors embed \
  ablation report show-batch show-tree bench bench-gpu oracles
help:
	@sed -n 's/^#: \?//p' Makefile
setup: $(SETUP)
$(SETUP): pyproject.toml constraints.txt setup.sh
	@bash setup.sh "$(PYTHON)" "$@"
demo: $(SETUP)
	@$(gdt) generate --identity 0.04 --actions-per-video 3 --train 40 --val 20 --test 20 \
	  --destination data/videos/demo | sed '/^next:/d'
	@$(gdt) preprocess --dataset demo --layout synthetic --source data/videos/demo | sed '/^next:/d'
	@CUDA_VISIBLE_DEVICES= $(gdt) ablation --dataset demo --rows e l --equal videos compute --steps 300 --lr 3e-3 --clips 3 \
	  --seeds 0 --protocols retrieval --out runs/demo
	@$(gdt) report --runs runs/demo --models 1
generate preprocess verify factors embed ablation report show-batch show-tree: $(SETUP)
	@$(gdt) $@ $(options)
pretrain: $(SETUP)
	@$(if $(GPUS),$(ranks) --nproc-per-node "$$GPUS" -m gdt,$(gdt)) $@ $(options)
eval: $(SETUP)
	@$(gdt) evaluate $(options)
eval-ucf: $(SETUP)
	@$(gdt) evaluate --dataset ucf101 $(official) $(options)
eval-hmdb: $(SETUP)
	@$(gdt) evaluate --dataset hmdb51 $(official) $(options)
eval-esc50: $(SETUP)
	@$(gdt) evaluate --dataset esc50 $(official) svm --modalities audio $(options)
bench: $(SETUP)
	@for name in preprocess loader step; do $(PYTHON) -m benchmarks.$$name || exit; done
bench-gpu: $(SETUP)
	@$(PYTHON) -m benchmarks.gpu $(ARGS)
lint: $(SETUP)
	@$(PYTHON) -m ruff check . && $(PYTHON) -m ruff format --check . && $(PYTHON) -m mypy
test: lint
	@$(PYTHON) -m pytest -n 2 --dist worksteal
oracles: $(SETUP)
	@$(PYTHON) -m pip install --quiet --disable-pip-version-check -e '.[oracles]' -c constraints.txt
	@$(PYTHON) -m pytest -m oracles -rs tests/oracles
clean:
	rm -rf .venv
