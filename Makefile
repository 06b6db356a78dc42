# Every command a person types. `make help` lists them.

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

DATASET ?= synthetic
PRESET ?= l
GPUS ?= 1
SIZE ?= $(shell nvidia-smi -L >/dev/null 2>&1 && echo paper || echo tiny)
SEEDS ?= 0 1 2
ROWS ?= a e l
ARGS ?=
# empty variables leave the program's own default
flag = $(if $(2),$(1) "$(2)")
# a composition of one's own, or a named one
# (both, where both are typed, so that the program says what it thinks of that)
typed_preset = $(if $(filter command,$(firstword $(origin PRESET))),--preset $(PRESET))
composition = $(if $(FACTORS),--factors "$(FACTORS)" $(typed_preset),--preset $(PRESET)) \
  $(call flag,--factors-from,$(FACTORS_FROM))
words = $(call flag,--word2vec,$(WORD2VEC))
# how models are evaluated
protocols = $(if $(PROTOCOLS),--protocols $(PROTOCOLS)) $(if $(FOLDS),--folds $(FOLDS)) --size $(SIZE) \
  $(call flag,--recipe,$(RECIPE)) $(if $(filter command,$(firstword $(origin GPUS))),--side-by-side $(GPUS)) \
  $(call flag,--label,$(LABEL)) $(words)
# as a job, in several processes on this machine, or in one
several = $(or $(filter-out 1,$(NODES)),$(SCHEDULER),$(SBATCH))
job = --nodes $(or $(NODES),1) --gpus $(GPUS) $(call flag,--scheduler,$(SCHEDULER)) $(if $(SBATCH),--sbatch="$(SBATCH)")
processes = $(if $(several),.submit $(job),$(if $(filter-out 1,$(GPUS)),.launch $(GPUS)))
cluster = $(call flag,--scheduler,$(SCHEDULER)) $(call flag,--workers,$(WORKERS))

# What each target heeds. A variable that is typed and heeded by none of the targets is refused before anything starts.
heeds.help :=
heeds.setup :=
heeds.demo :=
heeds.lint :=
heeds.test :=
heeds.clean :=
heeds.preprocess := DATASET SOURCE DRY_RUN WORKERS SCHEDULER WORD2VEC ARGS
heeds.verify := DATASET FULL WORKERS SCHEDULER ARGS
heeds.pretrain := DATASET PRESET FACTORS FACTORS_FROM WORD2VEC INIT SIZE GPUS NODES SCHEDULER SBATCH ARGS
heeds.eval-ucf := CKPT PRESET PROTOCOLS FOLDS RECIPE LABEL WORD2VEC SIZE GPUS ARGS
heeds.eval-hmdb := $(heeds.eval-ucf)
heeds.eval := DATASET FACTORS $(heeds.eval-ucf)
heeds.eval-factors := CKPT DATASET PRESET FACTORS ARGS
heeds.embed := CKPT DATASET PRESET SOURCE ARGS
heeds.report := RUNS ARGS
heeds.ablation := DATASET ROWS SEEDS SIZE WORD2VEC ARGS
heeds.show-tree := PRESET FACTORS FACTORS_FROM ARGS
heeds.show-batch := DATASET WORD2VEC SIZE $(heeds.show-tree)
heeds.bench := SOURCE
heeds.bench-gpu := ARGS
# what make, Python and the libraries heed
handed_on := PYTHON% STAMP CONDA_PREFIX VIRTUAL_ENV SHELL MAKE% PATH HOME TMPDIR LD_% PIP_% OMP_% CUDA_% NVIDIA_% NCCL_% \
  TORCH_% PYTORCH_% MKL_% DASK_% GDT_% %_proxy %_PROXY
goals := $(or $(MAKECMDGOALS),help)
typed := $(foreach name,$(.VARIABLES),$(if $(filter command,$(firstword $(origin $(name)))),$(name)))
unheeded := $(filter-out $(handed_on) $(foreach goal,$(goals),$(heeds.$(goal))),$(typed))
# a target that is not known is for make to refuse
ifeq ($(filter undefined,$(foreach goal,$(goals),$(origin heeds.$(goal)))),)
ifneq ($(unheeded),)
$(shell $(firstword $(wildcard $(PYTHON)) python3) -m pipeline.variables '$(goals)' '$(unheeded)' \
  "$(foreach goal,$(goals),$(heeds.$(goal)))" "$(foreach name,$(filter heeds.%,$(.VARIABLES)),$($(name)))" >&2)
$(error not heeded: $(unheeded); nothing was started)
endif
endif

.PHONY: help setup demo test lint preprocess verify pretrain ablation eval eval-ucf eval-hmdb eval-factors embed report show-batch show-tree bench bench-gpu clean
.SUFFIXES:
# checks, not commands
.PHONY: gpus nodes

help: ## this list
	@echo "make <target> [VARIABLE=value ...]"; echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' Makefile
	@echo; echo "python -m preprocess|train|eval --help shows every option; pass them as ARGS=\"--option value\"."

setup: $(STAMP) ## install everything into .venv (or the active conda environment)

$(STAMP): pyproject.toml constraints.txt setup.sh
	@bash setup.sh "$(PYTHON)" "$@"

demo: $(STAMP) ## the whole way on a generated data set, without a GPU, in five minutes
	@$(PYTHON) -m preprocess.synthetic --destination data/videos/demo --train 40 --val 1 --test 20
	@$(PYTHON) -m preprocess --dataset synthetic --source data/videos/demo --destination data/shards/demo
	@CUDA_VISIBLE_DEVICES= $(PYTHON) -m eval ablation --dataset demo --clips-per-step 32 --steps 340 --clips 3 \
	  --side-by-side 3 --factors no --out runs/demo
	@$(PYTHON) -m eval report --runs runs/demo --out runs/demo/report.html

preprocess: $(STAMP) ## videos to shards: DATASET= SOURCE= [DRY_RUN=1] [WORKERS=] [SCHEDULER=] [WORD2VEC=]; again: resumes
	@$(PYTHON) -m preprocess --dataset $(DATASET) $(call flag,--source,$(SOURCE)) $(words) \
	  $(cluster) $(if $(DRY_RUN),--dry-run) $(ARGS)

verify: $(STAMP) ## checks every shard and says what is damaged: DATASET= [FULL=1: decodes every frame]
	@$(PYTHON) -m preprocess.verify --dataset $(DATASET) $(cluster) $(if $(FULL),--full) $(ARGS)

pretrain: $(STAMP) gpus nodes ## shards to a checkpoint: [DATASET=] [PRESET=l|help | FACTORS="..."] [WORD2VEC=] [INIT=] [SIZE=paper|tiny] [GPUS=1] [NODES=4 SCHEDULER=slurm [SBATCH="--partition=gpu ..."]]; again: resumes
	@$(PYTHON) -m train$(processes) $(SIZE) --dataset $(DATASET) $(composition) \
	  $(words) $(call flag,--init,$(INIT)) $(ARGS)

eval: $(STAMP) gpus ## any data set by the paper's protocols: [CKPT=...] [DATASET=] [PROTOCOLS="retrieval few-shot linear finetune cross-modal"]
	@$(PYTHON) -m eval downstream --ckpt $(or $(CKPT),runs/$(DATASET)-$(if $(FACTORS),own,$(PRESET))/checkpoint.pt) \
	  $(if $(filter-out file,$(origin DATASET)),--dataset $(DATASET)) $(protocols) $(ARGS)

eval-ucf: ## UCF-101, all folds: finetune, retrieval, few-shot, linear: [CKPT=] [FOLDS="1 2 3"] [RECIPE=paper|published] [PROTOCOLS=] [GPUS=]
eval-hmdb: ## the same for HMDB-51
eval-ucf eval-hmdb: $(STAMP) gpus
	@$(PYTHON) -m eval downstream --ckpt $(or $(CKPT),runs/kinetics-$(PRESET)/checkpoint.pt) \
	  --dataset $(if $(filter eval-ucf,$@),ucf101,hmdb51) \
	  $(if $(PROTOCOLS),,--protocols finetune retrieval few-shot linear) $(protocols) $(ARGS)

eval-factors: $(STAMP) ## what features know of each factor, beside what the composition promises: [CKPT="a.pt ..."] [DATASET=]
	@$(PYTHON) -m eval factors --ckpt $(or $(CKPT),runs/$(DATASET)-$(if $(FACTORS),own,$(PRESET))/checkpoint.pt) \
	  $(if $(filter-out file,$(origin DATASET)),--dataset $(DATASET)) $(ARGS)

embed: $(STAMP) ## features of your videos in a file: CKPT= SOURCE=/my/videos | DATASET= [ARGS="--out features.h5"]
	@$(PYTHON) -m eval embed --ckpt $(or $(CKPT),runs/$(DATASET)-$(PRESET)/checkpoint.pt) $(call flag,--source,$(SOURCE)) \
	  $(if $(filter-out file,$(origin DATASET)),--dataset $(DATASET)) $(ARGS)

report: $(STAMP) ## one HTML page of all runs below a folder: [RUNS=runs] [ARGS="--out page.html --figures-of NAME"]
	@$(PYTHON) -m eval report $(call flag,--runs,$(RUNS)) $(ARGS)

ablation: $(STAMP) ## rows of table 1 compared, several seeds, on every label, and by factors: [DATASET=] [ROWS="a e l"] [SEEDS="0 1 2"]
	@$(PYTHON) -m eval ablation --dataset $(DATASET) --size $(SIZE) --rows $(ROWS) --seeds $(SEEDS) \
	  $(words) $(ARGS)

show-batch: $(STAMP) ## a picture of every leaf of one video: [DATASET=] [PRESET=l | FACTORS="..."] [WORD2VEC=]
	@$(PYTHON) -m eval show-batch --dataset $(DATASET) $(composition) $(words) --size $(SIZE) $(ARGS)

show-tree: $(STAMP) ## the sampling tree, and what each leaf attracts and repels: [PRESET=l | FACTORS="..."]
	@$(PYTHON) -m eval show-tree $(composition) $(ARGS)

bench: $(STAMP) ## the speed figures of the README: [SOURCE=/videos]
	@$(PYTHON) -m benchmarks.preprocess $(call flag,--source,$(SOURCE))
	@$(PYTHON) -m benchmarks.loader $(call flag,--source,$(SOURCE))
	@$(PYTHON) -m benchmarks.memory
	@$(PYTHON) -m benchmarks.planning
	@$(PYTHON) -m benchmarks.relabel
	@$(PYTHON) -m benchmarks.features
	@$(PYTHON) -m benchmarks.size

bench-gpu: $(STAMP) ## what a GPU does, beside predictions and the plain way, on shards that it draws: [ARGS="--minutes 40"]
	@$(PYTHON) -m benchmarks.gpu $(ARGS)

gpus:
	@[[ "$(GPUS)" =~ ^[1-9][0-9]*$$ ]] || { echo "error: GPUS is '$(GPUS)'; it must be 1 or more" >&2; exit 2; }

nodes:
	@[[ "$(or $(NODES),1)" =~ ^[1-9][0-9]*$$ ]] || { echo "error: NODES is '$(NODES)'; it must be 1 or more" >&2; exit 2; }

lint: $(STAMP) ## style and types
	@$(PYTHON) -m ruff check . && $(PYTHON) -m ruff format --check . && $(PYTHON) -m mypy

test: $(STAMP) lint ## set up, then style, types and the whole test suite
	@$(PYTHON) -m pytest -n 2 --dist worksteal

clean: ## remove the virtual environment; data and runs stay
	rm -rf .venv
