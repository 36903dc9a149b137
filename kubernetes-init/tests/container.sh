# Makes a container's surroundings and becomes kubernetes-init in them: CGROUPS ROOT DIRECTORY PROGRAM.
# It starts itself again, in a cgroup and namespaces of its own, and removes the cgroup at the end.
# The base is /usr of this machine, with the files of DIRECTORY/base/usr over it if there are any.
set -eu
cgroups=$1 root=$2 directory=$3 program=$4
if [ "${CGROUP:-}" = "" ]; then
    mkdir -p "$cgroups" "$root"
    mount -t cgroup2 none "$cgroups"
    export CGROUP="$cgroups/instar-test-$$"
    mkdir "$CGROUP"
    code=0
    sh -c 'echo $$ > "$CGROUP/cgroup.procs"; exec unshare --mount --pid --ipc --uts --cgroup --fork --kill-child sh "$@"' \
        sh "$0" "$@" || code=$?
    find "$CGROUP" -depth -type d -exec rmdir {} +
    exit "$code"
fi
mount -t tmpfs none "$root"
cd "$root"
mkdir usr proc sys dev run tmp etc opt instar
if [ -d "$directory/base/usr" ]; then
    mount -t overlay none -o "lowerdir=$directory/base/usr:/usr" usr
else
    mount --bind /usr usr
fi
for link in bin sbin lib lib64; do ln -s "usr/$link" "$link"; done
echo 'VERSION_ID=v0.0.1' > etc/os-release
mount -t proc none proc
mount --bind /dev dev
mkdir -p sys/fs/cgroup
mount -t cgroup2 none sys/fs/cgroup
mount --bind "$directory" instar
cp "$program" init
exec chroot . /init
