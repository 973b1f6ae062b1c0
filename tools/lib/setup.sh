# shellcheck shell=bash
# Makes a checkout able to run: sourced by tools/test, tools/demo, tools/bench.
#
#   . "$(dirname "${BASH_SOURCE[0]}")/lib/setup.sh"
#   pytcp_setup curl ip            # programs this tool uses beside Python and the compiler
#   exec "$PYTCP_PYTHON" -m pytcp demo
#
# On a Debian or Ubuntu machine, as root, missing packages are installed; otherwise the command that
# installs them is printed, and what can go on without them does. The virtual environment is .venv in
# the checkout, with the package in editable mode and its C helpers built. A stamp makes all this a
# matter of milliseconds until pyproject.toml or csrc/ changes. Nothing reads standard input.

PYTCP_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
PYTCP_PYTHON=$PYTCP_ROOT/.venv/bin/python

_pytcp_say() { printf 'setup: %s\n' "$*" >&2; }

# What of the work of the moment (a log, a policy of ours) must not stay behind. Traps see the variables of who was interrupted.
_pytcp_interrupted() {
	[ -z "${log:-}" ] || rm -f "$log"
	[ -z "${ours:-}" ] || rm -f "$policy"
	_pytcp_say interrupted
	exit 130
}

_pytcp_package_of() {
	case $1 in
	ip | ss | tc) echo iproute2 ;;
	cc) echo gcc libc6-dev ;;
	nginx) echo nginx-light ;;
	unshare | nsenter) echo util-linux ;;
	chromedriver) echo chromium-driver ;;
	*) echo "$1" ;;
	esac
}

# Install packages as root, without questions and without starting the services among them.
_pytcp_apt() {
	local policy=/usr/sbin/policy-rc.d status=0 ours=""
	_pytcp_say "installing $*"
	if [ ! -e "$policy" ]; then
		printf '#!/bin/sh\nexit 101\n' >"$policy" && chmod 755 "$policy" && ours=1
	fi
	export DEBIAN_FRONTEND=noninteractive
	# lists may be absent or old: refresh them only when an install fails
	apt-get install -y -q --no-install-recommends "$@" </dev/null >&2 ||
		{ apt-get update -q </dev/null >&2 && apt-get install -y -q --no-install-recommends "$@" </dev/null >&2; } || status=$?
	[ -z "$ours" ] || rm -f "$policy"
	return $status
}

# Get packages or say how. With "required" first, going on without them makes no sense.
_pytcp_provide() {
	local need=$1
	shift
	if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null && _pytcp_apt "$@"; then
		return 0
	fi
	_pytcp_say "missing: $*"
	_pytcp_say "install with:  sudo apt-get install -y --no-install-recommends $*"
	[ "$need" != required ]
}

_pytcp_find_python() {
	local candidate
	# a distribution builds its interpreter with profile feedback, a version manager often does not
	if [ -z "${PYTHON:-}" ] && /usr/bin/python3 -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
		echo /usr/bin/python3
		return 0
	fi
	for candidate in ${PYTHON:-} python3 python3.14 python3.13 python3.12 python3.11; do
		if command -v "$candidate" >/dev/null && "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
			command -v "$candidate"
			return 0
		fi
	done
	return 1
}

_pytcp_stamp() {
	{
		cat "$PYTCP_ROOT/pyproject.toml" "$PYTCP_ROOT"/csrc/*.[ch] "$PYTCP_ROOT"/csrc/*.py
		command -v cc || echo no compiler
		echo "$PYTCP_ROOT"
	} | sha256sum | cut -d' ' -f1
}

_pytcp_ready() {
	[ -x "$PYTCP_PYTHON" ] && [ "$(cat "$PYTCP_ROOT/.venv/pytcp-stamp" 2>/dev/null)" = "$1" ] && "$PYTCP_PYTHON" -c '' 2>/dev/null &&
		{ [ "${PYTCP_REQUIRE_C:-}" != 1 ] || compgen -G "$PYTCP_ROOT/pytcp/_native*.so" >/dev/null; }
}

_pytcp_install() {
	local python log status=0
	if ! python=$(_pytcp_find_python); then
		_pytcp_provide required python3 python3-venv python3-dev || return 1
		python=$(_pytcp_find_python) || {
			_pytcp_say "Python 3.11 or newer is needed; set PYTHON to one"
			return 1
		}
	fi
	if ! "$PYTCP_PYTHON" -c 'import pip' 2>/dev/null; then
		_pytcp_say "making .venv with $python"
		"$python" -c 'import ensurepip, venv' 2>/dev/null || _pytcp_provide required python3-venv || return 1
		log=$(mktemp)
		"$python" -m venv "$PYTCP_ROOT/.venv" </dev/null >"$log" 2>&1 || status=$?
		[ $status = 0 ] || cat "$log" >&2
		rm -f "$log"
		[ $status = 0 ] || return 1
	fi
	if command -v cc >/dev/null && ! "$PYTCP_PYTHON" -c 'import os, sysconfig; os.stat(sysconfig.get_paths()["include"] + "/Python.h")' 2>/dev/null; then
		_pytcp_provide optional python3-dev || true
	fi
	_pytcp_say "installing pytcp and what it needs into .venv"
	log=$(mktemp)
	(
		cd "$PYTCP_ROOT"
		export PIP_NO_INPUT=1 PIP_DISABLE_PIP_VERSION_CHECK=1
		# with a compiler at hand, C that does not build is an error of this checkout
		if command -v cc >/dev/null; then export PYTCP_REQUIRE_C=1; fi
		# the build's own needs live in .venv: a changed C file is then rebuilt without a network
		"$PYTCP_PYTHON" -m pip install -q 'setuptools>=77' 'cffi>=1.16' wheel </dev/null &&
			"$PYTCP_PYTHON" -m pip install -q --no-build-isolation --config-settings editable_mode=compat -e '.[test]' </dev/null
	) >"$log" 2>&1 || status=$?
	[ $status = 0 ] || cat "$log" >&2
	rm -f "$log"
	return $status
}

# pytcp_setup PROGRAM...: on return $PYTCP_PYTHON runs pytcp. Fails when it cannot.
pytcp_setup() {
	local program stamp status=0
	local -a packages=()
	trap _pytcp_interrupted INT
	for program in cc "$@"; do
		command -v "$program" >/dev/null || read -ra packages <<<"${packages[*]-} $(_pytcp_package_of "$program")"
	done
	if [ ${#packages[@]} -gt 0 ]; then
		_pytcp_provide optional "${packages[@]}" || true
	fi
	stamp=$(_pytcp_stamp)
	if _pytcp_ready "$stamp"; then
		trap - INT
		return 0
	fi
	mkdir -p "$PYTCP_ROOT/.venv"
	# one at a time: a second tool started meanwhile waits and finds the work done
	{
		flock 9 || true
		_pytcp_ready "$stamp" || {
			_pytcp_install 9>&- || {
				_pytcp_say "failed"
				return 1
			}
			_pytcp_stamp >"$PYTCP_ROOT/.venv/pytcp-stamp"
		}
	} 9>"$PYTCP_ROOT/.venv/pytcp-lock" || status=$?
	trap - INT
	return $status
}
