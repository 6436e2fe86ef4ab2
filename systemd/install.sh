#!/bin/sh
# Installs MeshAI from this checkout as a systemd service, or brings an installation up to date.
# A second run that finds nothing to do changes nothing and says so.
set -eu
umask 022

usage() {
    cat <<'END'
Usage: sudo sh systemd/install.sh [OPTIONS]

  --local         with the embedded language model (64-bit systems; kept at later runs)
  --python FILE   use this Python, which has MeshAI installed already, instead of making an environment
  --no-start      do not start the service
  --no-user       make no system user, give no file away
  --uninstall     remove the service and the program; settings and data stay
  --help          this text

Installs to /opt/meshai, /etc/meshai, /etc/systemd/system and /usr/local/bin. With DESTDIR set, everything goes below that folder and
neither users nor services of this system are touched. PIP_ARGS is handed to pip.

Example: sudo sh systemd/install.sh --local
END
}

say() { printf '%s\n' "$*"; }
fail() { printf 'install.sh: %s\n' "$*" >&2; exit 1; }

checkout=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
root=${DESTDIR:-}
program=$root/opt/meshai
settings=$root/etc/meshai
unit=$root/etc/systemd/system/meshai.service
command=$root/usr/local/bin/meshai-service
stamp=$program/installed
user=meshai

with_local='' python='' start=yes make_user=yes action=install
while [ $# -gt 0 ]; do
    case $1 in
        --local) with_local=yes ;;
        --python) [ $# -ge 2 ] || fail "--python needs a file"; python=$2; shift ;;
        --no-start) start='' ;;
        --no-user) make_user='' ;;
        --uninstall) action=uninstall ;;
        --help | -h) usage; exit 0 ;;
        *) usage >&2; fail "unknown option $1" ;;
    esac
    shift
done

if [ -n "$root" ]; then
    start='' make_user=''
elif [ "$(id -u)" != 0 ]; then
    fail "needs root: sudo sh $0"
fi
has_systemd=''
if [ -z "$root" ] && [ -d /run/systemd/system ]; then has_systemd=yes; fi
changed=''

# Whether the program's folder holds what this script makes there, and not, say, a checkout.
is_ours() { [ -e "$stamp" ] || [ -e "$program/pyvenv.cfg" ]; }

uninstall() {
    if [ -n "$has_systemd" ] && [ -e "$unit" ]; then systemctl disable --now meshai.service; fi
    if [ -e "$unit" ]; then
        rm -f "$unit"
        changed=yes
        if [ -n "$has_systemd" ]; then systemctl daemon-reload; fi
        say "service removed"
    fi
    rm -f "$command"
    if is_ours; then
        rm -rf "$program"
        changed=yes
        say "program removed"
    fi
    if [ -z "$changed" ]; then say "nothing to remove"; fi
    for kept in "$settings" "$root/var/lib/meshai"; do
        if [ -e "$kept" ]; then say "kept: $kept"; fi
    done
    if [ -z "$root" ] && getent passwd "$user" >/dev/null; then say "kept: the user $user"; fi
}

check_python() {
    found=${python:-$(command -v python3 || true)}
    if [ -z "$found" ]; then fail "no python3: apt install python3 python3-venv"; fi
    if ! "$found" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
        fail "$found is $("$found" --version 2>&1); MeshAI needs Python 3.11 or newer (Debian 12, Raspberry Pi OS of 2023)"
    fi
    if [ -z "$python" ] && ! "$found" -c 'import ensurepip, venv' 2>/dev/null; then
        fail "$found makes no environments: apt install python3-venv"
    fi
    if [ -n "$python" ] && ! "$python" -m meshai --version >/dev/null; then
        fail "$python has no MeshAI: $python -m pip install $checkout"
    fi
}

add_user() {
    if [ -z "$make_user" ] || getent passwd "$user" >/dev/null; then return; fi
    useradd --system --user-group --groups dialout --no-create-home --home-dir /var/lib/meshai \
        --shell /usr/sbin/nologin "$user"
    changed=yes
    say "user $user made"
}

fingerprint() {
    # What the program is made of: extras, Python and every file of it.
    printf '%s%s\n' "${python:-$("$found" --version 2>&1)}" "${with_local:+ local}"
    if [ -z "$python" ]; then
        cd "$checkout"
        find meshai pyproject.toml README.md LICENSE -type f ! -name '*.pyc' -exec sha256sum {} + | LC_ALL=C sort
    fi
}

install_program() {
    # An installation with the local model keeps it.
    if [ -e "$stamp" ] && head -n 1 "$stamp" | grep -q ' local$'; then with_local=yes; fi
    wanted=$(fingerprint)
    if [ -e "$stamp" ] && [ "$wanted" = "$(cat "$stamp")" ] && "$program/bin/meshai" --version >/dev/null 2>&1; then
        say "program is up to date: $program"
        return
    fi
    if [ -n "$(ls -A "$program" 2>/dev/null)" ] && ! is_ours; then
        fail "$program holds something else; move it away (a checkout may be anywhere but there)"
    fi
    if [ -n "$python" ]; then
        mkdir -p "$program/bin"
        printf '#!/bin/sh\nexec %s -m meshai "$@"\n' "$python" >"$program/bin/meshai"
        chmod 755 "$program/bin/meshai"
    else
        if ! "$program/bin/python" -c 'import pip' 2>/dev/null; then "$found" -m venv --clear "$program"; fi
        # Should anything below fail, the next run starts here again, with the same extras.
        printf '%s\n' "$wanted" | head -n 1 >"$stamp"
        say "installing into $program (this may take some minutes)"
        # shellcheck disable=SC2086  # several words on purpose
        "$program/bin/python" -m pip install --upgrade ${PIP_ARGS:-} "$checkout${with_local:+[local]}" ||
            fail "pip could not install; is there a network? The lines above tell more"
    fi
    version=$("$program/bin/meshai" --version) || fail "$program/bin/meshai does not start; the lines above tell why"
    printf '%s\n' "$wanted" >"$stamp"
    changed=yes
    say "$version installed: $program"
}

write_settings() {
    if [ -e "$settings/config.yaml" ]; then
        say "settings kept: $settings/config.yaml"
        return
    fi
    mkdir -p "$settings"
    chmod 750 "$settings"
    "$program/bin/meshai" config --example >"$settings/config.yaml.new"
    chmod 640 "$settings/config.yaml.new"
    if [ -n "$make_user" ]; then chown root:"$user" "$settings" "$settings/config.yaml.new"; fi
    mv "$settings/config.yaml.new" "$settings/config.yaml"
    changed=yes
    say "settings written: $settings/config.yaml; change them there"
}

# place FILE MODE TO: copies a file so that nobody ever sees half of it. Not to be called as a condition, where
# `set -e` does not hold.
place() {
    mkdir -p "$(dirname "$3")"
    cp "$1" "$3.new"
    chmod "$2" "$3.new"
    mv "$3.new" "$3"
    changed=yes
}

install_command() {
    if ! cmp -s "$checkout/systemd/meshai-service" "$command"; then
        place "$checkout/systemd/meshai-service" 755 "$command"
        say "command installed: $command"
    fi
    # The service makes it too, but the command may come first.
    if [ -n "$make_user" ] && [ ! -d /var/lib/meshai ]; then
        install -d -m 700 -o "$user" -g "$user" /var/lib/meshai
    fi
}

install_unit() {
    if cmp -s "$checkout/systemd/meshai.service" "$unit"; then
        say "service is up to date: $unit"
    else
        place "$checkout/systemd/meshai.service" 644 "$unit"
        say "service installed: $unit"
        if [ -n "$has_systemd" ]; then systemctl daemon-reload; fi
    fi
    if [ -z "$has_systemd" ]; then return; fi
    if ! systemctl is-enabled --quiet meshai.service; then
        systemctl enable meshai.service
        changed=yes
    fi
}

start_service() {
    if [ -z "$start" ] || [ -z "$has_systemd" ]; then return; fi
    if [ -z "$changed" ] && systemctl is-active --quiet meshai.service; then return; fi
    systemctl restart meshai.service || fail "the service does not start: journalctl -u meshai -n 20"
    changed=yes
    say "service started; see journalctl -fu meshai"
}

if [ "$action" = uninstall ]; then
    uninstall
    exit 0
fi
check_python
add_user
install_program
write_settings
install_command
install_unit
start_service
if [ -n "$changed" ]; then
    say "done. Next: ${with_local:+sudo meshai-service model fetch, then }sudo meshai-service check"
else
    say "nothing to do: everything is installed and up to date"
fi
