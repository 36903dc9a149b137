# Makes the container's surroundings and becomes kubernetes-init: CGROUPS ROOT DIRECTORY PROGRAM.
# It runs twice: first to enter a cgroup of its own, then in new namespaces.
set -eu
cgroups=$1 root=$2 directory=$3 program=$4
if [ "${INSIDE:-}" != 1 ]; then
    mkdir -p "$cgroups" "$root"
    mount -t cgroup2 none "$cgroups"
    mkdir "$cgroups/instar-test-$$"
    echo $$ > "$cgroups/instar-test-$$/cgroup.procs"
    INSIDE=1 exec unshare --mount --pid --ipc --uts --cgroup --fork --kill-child sh "$0" "$@"
fi
mount -t tmpfs none "$root"
cd "$root"
mkdir usr proc sys dev run tmp etc opt instar
mount --bind /usr usr
for link in bin sbin lib lib64; do ln -s "usr/$link" "$link"; done
echo 'VERSION_ID=v0.0.1' > etc/os-release
mount -t proc none proc
mount --bind /dev dev
mkdir -p sys/fs/cgroup
mount -t cgroup2 none sys/fs/cgroup
mount --bind "$directory" instar
cp "$program" init
exec chroot . /init
