#!/usr/bin/env bash
# hosts.sh PROGRAM [ROUNDS [BUCKET_BYTES...]]: steps of gradual-dist-step and of PyTorch's DDP between two hosts, which
# are network namespaces with a veth pair that tc limits; a line a measurement: round, rate, model, exchange, median ms.
# With sizes of buckets: gradual-dist-step alone, with each of them in turn, which the line has after the exchange.
# Needs root and Open MPI; DDP needs a python3 (GRADUAL_PYTHON) with torch and is left out, with a message, without it.
set -euo pipefail

program=$(realpath "$1") rounds=${2:-3} buckets=("${@:3}") python=${GRADUAL_PYTHON:-python3}
here=$(dirname "$(realpath "${BASH_SOURCE[0]}")")
# shellcheck source=/dev/null
source "$here/../../tests/dist/environment.sh"

agent=$(mktemp)
hosts_end() {
  rm -f "$agent"
  for host in 1 2; do ip netns del gradual$host 2>/dev/null || true; done
}
trap hosts_end EXIT
for host in 1 2; do
  ip netns add gradual$host
  ip -n gradual$host link set lo up
done
ip link add gradual1 netns gradual1 type veth peer name gradual2 netns gradual2
for host in 1 2; do
  ip -n gradual$host addr add 10.9.0.$host/24 dev gradual$host
  ip -n gradual$host link set gradual$host up
done
# mpirun's remote shell: HOST COMMAND...; each host has a name of its own, or Open MPI takes both for one
cat >"$agent" <<'EOF'
#!/usr/bin/env bash
host=${1##*.}
shift
exec ip netns exec "gradual$host" unshare --uts bash -c "hostname host$host; $*"
EOF
chmod +x "$agent"

ours() {
  timeout 120 "$agent" 10.9.0.1 "exec mpirun --mca plm_rsh_agent $agent --mca orte_keep_fqdn_hostnames 1 --mca btl tcp,self \
    --mca btl_tcp_if_include 10.9.0.0/24 --mca oob_tcp_if_include 10.9.0.0/24 -host 10.9.0.1:1,10.9.0.2:1 -n 2 $program $*"
}
ddp() {
  local rank1
  GLOO_SOCKET_IFNAME=gradual2 ip netns exec gradual2 "$python" "$here/ddp.py" "$@" 1 10.9.0.1 & rank1=$!
  GLOO_SOCKET_IFNAME=gradual1 ip netns exec gradual1 "$python" "$here/ddp.py" "$@" 0 10.9.0.1
  wait "$rank1"
}
with_ddp=$((${#buckets[@]} == 0))
((!with_ddp)) || "$python" -c 'import torch' 2>/dev/null || { with_ddp=0 && echo "without DDP: $python has no torch" >&2; }

for ((round = 1; round <= rounds; ++round)); do
  for rate in none 1gbit 100mbit; do
    for host in 1 2; do
      tc=(ip netns exec "gradual$host" tc qdisc)
      "${tc[@]}" del dev gradual$host root 2>/dev/null || true
      [[ $rate == none ]] || "${tc[@]}" add dev gradual$host root tbf rate $rate burst 32kb latency 100ms
    done
    for work in mlp:200 mlp_medium:60 cnn:30; do
      model=${work%:*} steps=${work#*:}
      for exchange in exact f32/gather bf16/gather f16/gather e4m3fn/gather; do
        for bytes in "${buckets[@]}"; do
          [[ $exchange == f* ]] || echo "$round $rate $(ours "$model" $exchange "$steps" "$bytes" | sed "s/ [^ ]*\$/ $bytes&/")"
        done
        ((${#buckets[@]} == 0)) || continue
        echo "$round $rate $(ours "$model" $exchange "$steps")"
      done
      ((with_ddp)) || continue
      for hook in none fp16; do echo "$round $rate $(ddp "$model" $hook "$steps")"; done
    done
  done
done
