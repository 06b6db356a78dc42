# Replaces Python in make's recipes: appends the command and its environment to a file; `make` in test_mistakes.py reads it.
made=$1
shift
{ printf '%s\0' $# "$@"; env -0; printf '\0'; } >>"$made"
