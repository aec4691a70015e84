#!/usr/bin/env bash
# A real S3 server for tests: a Ceph RADOS Gateway from the packages of the system, unpacked, nothing installed; one monitor, one OSD in memory.
#   ceph_rgw.sh start DIR [PORT]   download once into DIR, start, create the user test/test; prints the endpoint
#   ceph_rgw.sh stop DIR [PORT]    end the processes that start began
# Needs root (Debian 12, apt). About 70 MB of packages, 180 MB of memory, 15 s to start.
set -eu
cmd=$1; dir=$(mkdir -p "$2" && cd "$2" && pwd); port=${3:-9020}
c=$dir/ceph; d=$dir/run-$port
if [ "$cmd" = stop ]; then
  [ -f "$d/pids" ] || exit 0
  while read -r p; do kill "$p" 2>/dev/null || true; done < "$d/pids"
  for _ in $(seq 1 50); do
    left=0; while read -r p; do kill -0 "$p" 2>/dev/null && left=1; done < "$d/pids"
    [ $left = 0 ] && break; sleep .2
  done
  [ -f "$d/pids" ] && while read -r p; do kill -9 "$p" 2>/dev/null || true; done < "$d/pids"
  rm -f "$d/pids"; exit 0
fi
if [ ! -x "$c/usr/bin/radosgw" ]; then
  mkdir -p "$dir/debs/partial" "$c"
  apt-get update -qq >/dev/null
  apt-get install -y -qq -d --no-install-recommends -o Dir::Cache::archives="$dir/debs" radosgw ceph-mon ceph-osd ceph-mgr >/dev/null
  for p in "$dir"/debs/*.deb; do dpkg -x "$p" "$c"; done
fi
lib=$c/usr/lib/x86_64-linux-gnu
export LD_LIBRARY_PATH=$lib:$c/lib/x86_64-linux-gnu:$c/usr/lib:$lib/ceph PATH=$c/usr/bin:$PATH CEPH_CONF=$d/ceph.conf
rm -rf "$d"; mkdir -p "$d/mon.a" "$d/osd.0" "$d/out"; touch "$d/keyring"
fsid=$(cat /proc/sys/kernel/random/uuid); osd=$(cat /proc/sys/kernel/random/uuid)
cat > "$d/ceph.conf" <<X
[global]
fsid = $fsid
mon host = v2:127.0.0.1:$((port + 4000))
ms bind ipv4 = true
public addr = 127.0.0.1
cluster addr = 127.0.0.1
auth cluster required = none
auth service required = none
auth client required = none
auth allow insecure global id reclaim = true
osd pool default size = 1
osd pool default min size = 1
mon allow pool size one = true
mon warn on pool no redundancy = false
osd crush chooseleaf type = 0
osd pool default pg num = 1
osd pool default pgp num = 1
osd pool default pg autoscale mode = off
mon max pg per osd = 1000
osd objectstore = memstore
memstore device bytes = 4294967296
run dir = $d/out
admin socket = $d/out/\$name.\$pid.asok
pid file = $d/out/\$name.pid
log file = $d/out/\$name.log
erasure code dir = $lib/ceph/erasure-code
plugin dir = $lib/ceph
osd class dir = $lib/rados-classes
keyring = $d/keyring
mon data avail crit = 1
mon data avail warn = 2
mon osd min up ratio = 0
ms mon cluster mode = crc
ms cluster mode = crc
ms service mode = crc
ms client mode = crc
ms mon client mode = crc
ms mon service mode = crc
[mon.a]
mon data = $d/mon.a
[osd.0]
osd data = $d/osd.0
[client.rgw]
rgw frontends = beast endpoint=127.0.0.1:$port tcp_nodelay=1
rgw enable usage log = false
rgw run sync thread = false
rgw dns name = 127.0.0.1
X
monmaptool --create --fsid "$fsid" --addv a "[v2:127.0.0.1:$((port + 4000))]" "$d/monmap" >/dev/null
ceph-mon -i a --mkfs --monmap "$d/monmap" --mon-data "$d/mon.a" >/dev/null
ceph-mon -i a -f >"$d/out/mon.out" 2>&1 </dev/null & echo $! >> "$d/pids"
ceph-osd -i 0 --mkfs --osd-uuid "$osd" --osd-data "$d/osd.0" >"$d/out/mkfs" 2>&1
PYTHONPATH=$c/usr/lib/python3/dist-packages timeout 30 /usr/bin/python3 "$c/usr/bin/ceph" osd new "$osd" >/dev/null
ceph-osd -i 0 -f >"$d/out/osd.out" 2>&1 </dev/null & echo $! >> "$d/pids"
radosgw -n client.rgw -f >"$d/out/rgw.out" 2>&1 </dev/null & echo $! >> "$d/pids"
for _ in $(seq 1 600); do (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null && break; sleep .1; done
timeout 60 radosgw-admin -n client.rgw user create --uid=t --display-name=t --access-key=test --secret-key=test >"$d/out/user.json" 2>"$d/out/user.err"
echo "http://127.0.0.1:$port"
