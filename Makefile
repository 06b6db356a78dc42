#: make demo        everything on generated videos, with a report: 6 to 9 minutes on 2 cores, no GPU
#: make test        style, types and the quick tests
#: make generate    labelled videos in data/videos/synthetic                      [SEED=]
#: make preprocess  videos to shards; again: resume                               [DATASET=kinetics] [SOURCE=]
#: make verify      check shards for damage                                       [DATASET=kinetics]
#: make pretrain    train on shards; again: resume    [DATASET=kinetics] [PRESET=l | FACTORS="..."] [GPUS=] [SEED=]
#:                                                    [STEPS=] [SIZE=paper|small|tiny]
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

variables := DATASET SOURCE PRESET FACTORS CKPT SEED STEPS SIZE GPUS ARGS
typed := $(foreach word,$(subst \ ,,$(MAKEOVERRIDES)),$(firstword $(subst =, ,$(word))))
typed := $(filter-out PYTHON SETUP MAKE%,$(typed))
unknown := $(filter-out $(variables),$(typed))
$(if $(unknown),$(error there is no variable $(unknown); there are $(variables)))
# the environment may hold such names by chance, so only what is typed after make counts
$(foreach name,$(variables),$(if $(filter environment,$(origin $(name))),$(warning \
  $(name) of the environment is not used; type $(name)=... after make)))
export $(variables)

DATASET_option = --dataset "$$DATASET"
SOURCE_option = --source "$$SOURCE"
PRESET_option = --preset "$$PRESET"
FACTORS_option = --factors "$$FACTORS"
CKPT_option = --ckpt $$CKPT
SEED_option = --seed "$$SEED"
STEPS_option = --steps "$$STEPS"
SIZE_option = --size "$$SIZE"
ARGS_option = $(ARGS)
# the options of the variables that a target takes; any other is refused
options = $(foreach name,$(filter-out $(1),$(typed)),$(error 'make $@' takes $(or $(1),no variable), not $(name)))$(foreach \
  name,$(filter $(typed),$(1)),$(if $($(name)),$($(name)_option)))

gdt := $(PYTHON) -m gdt
# torchrun does not pass on SIGUSR1, kills its ranks after 30 s, and takes SIGHUP in spite of nohup, unless told otherwise
ranks := PET_SIGNALS_TO_HANDLE=SIGTERM,SIGINT,SIGUSR1$$(trap -p HUP | grep -q "''" || echo ,SIGHUP) \
  PET_SHUTDOWN_TIMEOUT=600 $(PYTHON) -m torch.distributed.run --standalone
official := --protocols finetune retrieval few-shot knn linear

.PHONY: help setup demo test lint clean generate preprocess verify pretrain eval eval-ucf eval-hmdb eval-esc50 factors embed \
  ablation report show-batch show-tree bench bench-gpu oracles
help:
	@sed -n 's/^#: \?//p' Makefile $(call options)
setup: $(SETUP)
	@$(call options)
$(SETUP): pyproject.toml constraints.txt setup.sh
	@bash setup.sh "$(PYTHON)" "$@"
demo: $(SETUP)
	@$(gdt) generate --identity 0.04 --actions-per-video 3 --train 40 --val 20 --test 20 \
	  --destination data/videos/demo $(call options) | sed '/^next:/d'
	@$(gdt) preprocess --dataset demo --layout synthetic --source data/videos/demo | sed '/^next:/d'
	@CUDA_VISIBLE_DEVICES= $(gdt) ablation --dataset demo --size tiny --rows e l --equal videos compute --steps 300 --lr 3e-3 --clips 3 \
	  --seeds 0 --protocols retrieval --out runs/demo
	@$(gdt) report --runs runs/demo --models 1
generate: $(SETUP)
	@$(gdt) generate $(call options,SEED ARGS)
preprocess: $(SETUP)
	@$(gdt) preprocess $(call options,DATASET SOURCE ARGS)
verify: $(SETUP)
	@$(gdt) verify $(call options,DATASET ARGS)
pretrain: $(SETUP)
	@$(if $(and $(filter GPUS,$(typed)),$(GPUS)),$(ranks) --nproc-per-node "$$GPUS" -m gdt,$(gdt)) pretrain \
	  $(call options,DATASET PRESET FACTORS SEED STEPS SIZE GPUS ARGS)
eval: $(SETUP)
	@$(gdt) evaluate $(call options,DATASET CKPT SEED ARGS)
eval-ucf: $(SETUP)
	@$(gdt) evaluate --dataset ucf101 $(official) $(call options,CKPT SEED ARGS)
eval-hmdb: $(SETUP)
	@$(gdt) evaluate --dataset hmdb51 $(official) $(call options,CKPT SEED ARGS)
eval-esc50: $(SETUP)
	@$(gdt) evaluate --dataset esc50 $(official) svm --modalities audio $(call options,CKPT SEED ARGS)
factors: $(SETUP)
	@$(gdt) factors $(call options,DATASET CKPT ARGS)
embed: $(SETUP)
	@$(gdt) embed $(call options,SOURCE DATASET CKPT ARGS)
ablation: $(SETUP)
	@$(gdt) ablation $(call options,DATASET STEPS SIZE ARGS)
report: $(SETUP)
	@$(gdt) report $(call options,ARGS)
show-batch: $(SETUP)
	@$(gdt) show-batch $(call options,DATASET SEED SIZE PRESET FACTORS ARGS)
show-tree: $(SETUP)
	@$(gdt) show-tree $(call options,PRESET FACTORS ARGS)
bench: $(SETUP)
	@for name in preprocess loader step; do $(PYTHON) -m benchmarks.$$name $(call options) || exit; done
bench-gpu: $(SETUP)
	@$(PYTHON) -m benchmarks.gpu $(call options,ARGS)
lint: $(SETUP)
	@$(PYTHON) -m ruff check . && $(PYTHON) -m ruff format --check . && $(PYTHON) -m mypy $(call options)
test: lint
	@$(PYTHON) -m pytest -n 2 --dist worksteal
oracles: $(SETUP)
	@$(PYTHON) -m pip install --quiet --disable-pip-version-check -e '.[oracles]' -c constraints.txt
	@$(PYTHON) -m pytest -m oracles -rs tests/oracles $(call options)
clean:
	rm -rf .venv $(call options)
