# Commands to type; `make help` lists them. VARIABLE=value is the option --variable of the gdt command that a target
# runs, and ARGS="--option value" adds options. `gdt pretrain --help` lists the options of a command.

SHELL := /bin/bash
.DEFAULT_GOAL := help

# An active conda environment is used as it is; otherwise everything goes into .venv.
ifdef CONDA_PREFIX
PYTHON := $(CONDA_PREFIX)/bin/python
STAMP := $(CONDA_PREFIX)/.gdt-setup
else
PYTHON := .venv/bin/python
STAMP := .venv/.stamp
endif

# Variables typed on the command line, without those of make, Python and libraries; common/variables.py turns them into
# options. $(1) are those that a recipe uses itself.
libraries := PYTHON% STAMP CONDA_PREFIX VIRTUAL_ENV SHELL MAKE% PATH HOME TMPDIR LD_% PIP_% OMP_% CUDA_% NVIDIA_% \
  NCCL_% TORCH_% PYTORCH_% MKL_% DASK_% GDT_% %_proxy %_PROXY
typed := $(filter-out $(libraries),$(foreach name,$(.VARIABLES),$(if $(filter command,$(firstword $(origin $(name)))),$(name))))
inherited := $(foreach name,DATASET PRESET GPUS SIZE SEEDS ROWS ARGS,$(if $(filter environment,$(origin $(name))),$(name)))
# Their values are taken as typed: make expands no $ in them, and recipes quote them.
$(foreach name,$(typed) $(inherited),$(eval override export $(name) := $$(value $(name))))
quote = '$(subst ','\'',$(1))'
goals := $(or $(MAKECMDGOALS),help)
gdt = @GDT_GOALS=$(call quote,$(goals)) GDT_TYPED=$(call quote,$(filter-out $(1),$(typed))) \
  GDT_SET="$(filter-out $(1),$(inherited))" $(PYTHON) -m gdt

# Targets that do not wrap a single gdt command take these variables only; others are refused before anything is installed.
takes.bench := SOURCE
takes.bench-gpu := ARGS
ifeq ($(filter-out help setup demo test lint clean bench bench-gpu,$(goals)),)
takes := $(strip $(foreach goal,$(goals),$(takes.$(goal))))
$(if $(filter-out $(takes),$(typed)),$(error 'make $(goals)' takes $(if $(takes),only $(takes),no variables); remove $(filter-out $(takes),$(typed))))
endif
source = $(if $(SOURCE),--source "$${SOURCE/#\~\//$$HOME/}")
# the checkpoint of `make pretrain` with the same DATASET, PRESET, FACTORS and SEED; src/gdt/cli.py finds its path
checkpoint = make:$(call quote,$(or $(1),$(DATASET),synthetic))
# variables that select that checkpoint, not options of the command; with CKPT, SEED is the evaluation's own
of_run = PRESET FACTORS $(if $(CKPT),,SEED)
official = $(call gdt,$(of_run)) eval downstream --ckpt $(call checkpoint,kinetics) --protocols finetune retrieval few-shot linear

$(if $(filter-out eval-ucf eval-hmdb,$(goals)),,$(if $(filter DATASET,$(typed)),$(error 'make $(goals)' takes no DATASET; \
  other data sets: 'make eval DATASET=$(DATASET)' with PROTOCOLS="finetune retrieval few-shot linear")))
targets := help setup demo test lint generate preprocess verify pretrain ablation eval eval-ucf eval-hmdb \
  eval-factors embed report show-batch show-tree bench bench-gpu clean
$(foreach goal,$(filter-out $(targets) $(STAMP),$(goals)),$(error there is no target '$(goal)'; 'make help' lists them. \
  Quote values with spaces: SOURCE='/my videos'))
.PHONY: $(targets)
.SUFFIXES:

setup: $(STAMP) ## install everything into .venv, or into the active conda environment

$(STAMP): pyproject.toml constraints.txt setup.sh
	@bash setup.sh "$(PYTHON)" "$@"

demo: $(STAMP) ## run everything on generated videos: about 5 minutes on 2 cores, no GPU
	@$(PYTHON) -m gdt generate --identity 0.15 --actions-per-video 3 --destination data/videos/demo --train 40 --val 20 --test 20
	@$(PYTHON) -m gdt preprocess --dataset synthetic --source data/videos/demo --destination data/shards/demo
	@CUDA_VISIBLE_DEVICES= $(PYTHON) -m gdt eval ablation --dataset demo --rows l a e --steps 400 --clips 3 --seeds 0 \
	  --protocols retrieval linear --test-factors none --out runs/demo
	@$(PYTHON) -m gdt eval report --runs runs/demo --out runs/demo/report.html

generate: $(STAMP) ## generate videos with settings of your own | [IDENTITY=0.3] [ACTIONS_PER_VIDEO=3] [SEED=0] [DESTINATION=]
	$(gdt) generate

preprocess: $(STAMP) ## turn videos into shards; run again to resume | [DATASET=synthetic] [SOURCE=] [DRY_RUN=1] [WORKERS=] [SCHEDULER=] [WORD2VEC=]
	$(gdt) preprocess --dataset synthetic

verify: $(STAMP) ## check shards for damage | [DATASET=synthetic] [FULL=1 to decode every frame]
	$(gdt) verify --dataset synthetic

pretrain: $(STAMP) ## pretrain a model on shards; run again to resume | [DATASET=synthetic] [PRESET=l|help] [FACTORS="..."] [WORD2VEC=] [INIT=] | [SIZE=tiny|paper|paper-ablation|paper-howto100m|paper-text-ablation] [GPUS=1]
	$(subst $(PYTHON) -m gdt,$(python) -m gdt,$(call gdt,GPUS)) pretrain --dataset synthetic

# one process per GPU; by itself, torchrun ends them without a checkpoint on SIGUSR1, and 30 s after any signal
comma := ,
python := $(if $(filter-out 1,$(GPUS)),PET_SIGNALS_TO_HANDLE=SIGTERM$(comma)SIGINT$(comma)SIGUSR1 PET_SHUTDOWN_TIMEOUT=600 \
  $(PYTHON) -m torch.distributed.run --standalone --nproc-per-node $(GPUS),$(PYTHON))

eval: $(STAMP) ## evaluate by the paper's protocols on any data set | [CKPT=] [DATASET=synthetic] | [PROTOCOLS="retrieval few-shot linear finetune cross-modal"]
	$(call gdt,$(of_run)) eval downstream --ckpt $(checkpoint)

eval-ucf: $(STAMP) ## evaluate on UCF-101, all folds | [CKPT=] [FOLDS="1 2 3"] [PROTOCOLS=] [GPUS=]
	$(official) --dataset ucf101

eval-hmdb: $(STAMP) ## the same for HMDB-51
	$(official) --dataset hmdb51

eval-factors: $(STAMP) ## test which factors the features encode | [CKPT="a.pt ..."] [DATASET=synthetic]
	$(call gdt,$(of_run)) eval factors --ckpt $(checkpoint)

embed: $(STAMP) ## write features of your videos to a file | DATASET=folder [CKPT=] | SOURCE=/my/videos CKPT=a.pt | [OUT=features.h5]
	$(call gdt,$(of_run)) eval embed --ckpt $(checkpoint)

report: $(STAMP) ## write one HTML page of all runs in a folder | [RUNS=runs] [OUT=runs/report.html] [FIGURES_OF=NAME]
	$(gdt) eval report

ablation: $(STAMP) ## pretrain and compare rows of table 1 | [DATASET=synthetic] [ROWS="a e l"] [SEEDS="0 1 2"] | [EQUAL=videos|clips|compute] [BATCH_SIZE=] [STEPS=]
	$(gdt) eval ablation --dataset synthetic

show-batch: $(STAMP) ## draw every leaf of one video | [DATASET=synthetic] [PRESET=l] [FACTORS="..."] [WORD2VEC=]
	$(gdt) eval show-batch

show-tree: $(STAMP) ## draw the sampling tree with its positive and negative pairs | [PRESET=l] [FACTORS="..."]
	$(gdt) eval show-tree

theorem: $(STAMP) ## simulate the paper's theorem and compare it with the formulas
	$(gdt) study theorem

figures: $(STAMP) ## draw the paper's figures of features | [CKPT="a.pt ..."] [DATASET=synthetic]
	$(call gdt,$(of_run)) study figures --ckpt $(checkpoint)

bench: $(STAMP) ## measure preprocessing, loading and training steps against peers | [SOURCE=/videos]
	@$(PYTHON) -m benchmarks.preprocess $(source)
	@$(PYTHON) -m benchmarks.loader
	@$(PYTHON) -m benchmarks.step

bench-gpu: $(STAMP) ## check and measure a GPU in ten minutes | [ARGS="--device cpu --size tiny"]
	@$(PYTHON) -m benchmarks.gpu $(ARGS)

lint: $(STAMP) ## check style and types
	@$(PYTHON) -m ruff check . && $(PYTHON) -m ruff format --check . && $(PYTHON) -m mypy

test: $(STAMP) lint ## check style and types, and run the tests except the slow ones
	@$(PYTHON) -m pytest -n 2 --dist worksteal

clean: ## remove the virtual environment; data and runs stay
	rm -rf .venv

help: ## show this list
	@echo "usage: make <target> [VARIABLE=value ...]"; echo
	@awk -F ':.*## | [|] ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2; for (i = 3; i <= NF; i++) printf "%20s %s\n", "", $$i}' Makefile
	@echo; echo "Options of gdt commands are variables in capitals: --batch-size 64 is BATCH_SIZE=64."
	@echo "'.venv/bin/gdt <command> --help' lists the options."
