# shellcheck shell=bash
# Sourced by the scripts beside it: they run in the root of the repository and speak with one voice.

cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
: "${SERVER:=redis-server}"
# Many containers set this, and then each of a dozen processes compiles all the tests for itself, in 6 s.
unset PYTHONDONTWRITEBYTECODE

say() { printf '==> %s\n' "$*"; }
die() {
  printf '%s: %s\n' "${0##*/}" "$*" >&2
  exit 1
}
have() { command -v "$1" >/dev/null 2>&1; }

# The pytest arguments in SUITE, which may quote as in a shell: SUITE="-k 'fence or ttl'".
# shellcheck disable=SC2034 # for those that source this
suite=()
eval "suite=(${SUITE:-})"

# Most tests wait: several run at a time, those of a file in one process.
# shellcheck disable=SC2034
side_by_side=(--numprocesses 4 --dist loadfile)
# shellcheck disable=SC2034
python_side_by_side=(--numprocesses 3 --dist loadfile)

# The program as the tests have it. With the example libraries have the features that they have in `cargo test`.
# shellcheck disable=SC2034
build_program=(cargo build --quiet --bin slock --example conformance_agent)

# build_static [--release]: builds the program without a C library, and prints its path. Fails, with 3 if this machine
# lacks something for it, and says what. In a folder of its own: so other builds need not wait for it.
build_static() {
  local target profile folder=${CARGO_TARGET_DIR:-target}/static
  target=$(uname -m)-unknown-linux-musl
  profile=debug
  [ "${1:-}" != --release ] || profile=release
  ! have rustup || rustup target add "$target" >/dev/null 2>&1 || true
  if [ ! -d "$(rustc --print sysroot)/lib/rustlib/$target" ]; then
    say "no static program: Rust's target $target is missing. Run: rustup target add $target; without rustup, install" \
      "the package of your Rust for this target, or give a static program as SLOCK_STATIC" >&2
    return 3
  elif ! have musl-gcc; then
    say "no static program: musl-gcc is missing (Debian: musl-tools)" >&2
    return 3
  fi
  cargo build --quiet --bin slock --target "$target" --target-dir "$folder" "$@" >&2 &&
    echo "$folder/$target/$profile/slock"
}
