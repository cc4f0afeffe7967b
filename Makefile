.DEFAULT_GOAL := help
.PHONY: help check format test slow

help: ## Show this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/'

check: ## Lint, formatting and types
	ruff check .
	ruff format --check .
	mypy

format: ## Put everything into shape
	ruff check --fix .
	ruff format .

test: ## The default suite
	pytest

slow: ## What takes long: real kills, many starts
	pytest -m slow
