#!/bin/sh
# The first process of the virtual machine of guest.py: drivers, network, udev, and a loop that runs what it is told.
export PATH=/usr/sbin:/usr/bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
mount -t tmpfs run /run
mkdir -p /run/lock /run/udev /dev/shm
while read -r module; do
  insmod "$module" || echo "init: no $module" >/dev/kmsg
done </modules
ip link set lo up
ip addr add 10.0.2.15/24 dev eth0
ip link set eth0 up
ip route add default via 10.0.2.2
/usr/lib/systemd/systemd-udevd --daemon

# One request is a line: the command in base64. One answer is a line: the exit code, a blank, the output in base64.
until port=$(ls /dev/vport*); do sleep 0.1; done
exec 3<>"$port"
echo "ready" >&3
while read -r request <&3; do
  echo "$request" | base64 -d >/run/command
  sh /run/command </dev/null >/run/output 2>&1 3>&-
  code=$?
  echo "$code $(base64 -w0 /run/output)" >&3
done
