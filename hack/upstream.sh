#!/usr/bin/env bash
# make bench-upstream: Kubernetes' own parts with KWOK's nodes, every limit lifted, timed with
# the same steps as mend (REPLICAS=1000). Builds them from the Go module proxy into
# dist/upstream, which takes half an hour the first time, and runs them on loopback.
set -euo pipefail
cd "$(dirname "$0")/.."
replicas="${REPLICAS:-1000}" kube=1.37.2 etcd=3.7.3 kwok=0.8.0
root="$PWD" bin="$PWD/dist/upstream"
mkdir -p "$bin"
run="$(mktemp -d)"

# Both have modules of their own: KWOK is built on another version of Kubernetes. That of
# Kubernetes has mend's versions, so that mend's build cache serves.
build() { # module directory, then program and package
	(cd "$1" && GOFLAGS="-trimpath -buildvcs=false -mod=mod" CGO_ENABLED=0 go build -ldflags '-s -w' -o "$bin/$2" "$3")
}
sources() {
	mkdir -p "$bin/src/kubernetes" "$bin/src/kwok"
	sed "s#^module .*#module upstream#" go.mod >"$bin/src/kubernetes/go.mod"
	cp go.sum "$bin/src/kubernetes/go.sum"
	printf 'module upstream\n\ngo 1.26\n\nrequire sigs.k8s.io/kwok v%s\n' "$kwok" >"$bin/src/kwok/go.mod"
}
if [ ! -e "$bin/$kube-$etcd-$kwok" ]; then
	sources
	for program in kube-apiserver kube-controller-manager kube-scheduler; do
		build "$bin/src/kubernetes" "$program" "k8s.io/kubernetes/cmd/$program"
	done
	build "$bin/src/kubernetes" etcd go.etcd.io/etcd/server/v3
	build "$bin/src/kwok" kwok sigs.k8s.io/kwok/cmd/kwok
	cp -rL --no-preserve=mode "$(cd "$bin/src/kwok" && go list -mod=mod -m -f '{{.Dir}}' sigs.k8s.io/kwok)/kustomize/stage" "$bin/stages"
	touch "$bin/$kube-$etcd-$kwok"
fi

pids=()
finish() {
	if [ ${#pids[@]} != 0 ]; then
		kill "${pids[@]}" 2>/dev/null || true
		# The API server waits for its watches, which nobody ends any more.
		for _ in {1..20}; do
			kill -0 "${pids[@]}" 2>/dev/null || break
			sleep 0.5
		done
		kill -9 "${pids[@]}" 2>/dev/null || true
		wait 2>/dev/null || true
	fi
	rm -rf "$run"
}
trap finish EXIT
start() { # program and its flags
	"$bin/$1" "${@:2}" >"$run/$1.log" 2>&1 &
	pids+=($!)
}
kubectl() { timeout 20 "$root/bin/mend" kubectl --kubeconfig "$run/kubeconfig" "$@"; }
until_true() { # seconds, then a command
	local end=$((SECONDS + $1))
	until "${@:2}" >/dev/null 2>&1; do
		if [ "$SECONDS" -gt "$end" ]; then
			echo "not within $1 s: ${*:2}; what was printed last:" >&2
			tail -n 3 "$run"/*.log >&2
			exit 1
		fi
		sleep 0.5
	done
}
all_ready() { [ "$(kubectl get nodes --no-headers | grep -c ' Ready')" = 10 ]; }

openssl genrsa -out "$run/accounts.key" 2048 2>/dev/null
echo 'bench,admin,admin,system:masters' >"$run/tokens"
cat >"$run/kubeconfig" <<-END
	apiVersion: v1
	kind: Config
	clusters: [{name: upstream, cluster: {server: "https://127.0.0.1:26443", insecure-skip-tls-verify: true}}]
	users: [{name: admin, user: {token: bench}}]
	contexts: [{name: upstream, context: {cluster: upstream, user: admin}}]
	current-context: upstream
END
cat >"$run/kwok.yaml" <<-END
	apiVersion: config.kwok.x-k8s.io/v1alpha1
	kind: KwokConfiguration
	options: {nodePlayStageParallelism: 64, podPlayStageParallelism: 64, nodeLeaseParallelism: 4, nodeLeaseDurationSeconds: 40}
END
for file in "$bin"/stages/node/fast/*.yaml "$bin"/stages/node/heartbeat-with-lease/*.yaml "$bin"/stages/pod/fast/*.yaml; do
	case "$file" in *kustomization.yaml) ;; *) printf -- '---\n' && cat "$file" ;; esac
done >"$run/stages.yaml"

start etcd --data-dir "$run/etcd" --listen-client-urls http://127.0.0.1:23790 --advertise-client-urls http://127.0.0.1:23790 \
	--listen-peer-urls http://127.0.0.1:23800 --initial-advertise-peer-urls http://127.0.0.1:23800 \
	--initial-cluster default=http://127.0.0.1:23800 --quota-backend-bytes 4294967296 --log-level error
start kube-apiserver --etcd-servers http://127.0.0.1:23790 --bind-address 127.0.0.1 --secure-port 26443 --cert-dir "$run/pki" \
	--advertise-address 127.0.0.1 --endpoint-reconciler-type none --service-cluster-ip-range 10.0.0.0/24 \
	--service-account-key-file "$run/accounts.key" --service-account-signing-key-file "$run/accounts.key" \
	--service-account-issuer https://kubernetes.default.svc --token-auth-file "$run/tokens" --disable-admission-plugins ServiceAccount \
	--max-requests-inflight 0 --max-mutating-requests-inflight 0 --enable-priority-and-fairness=false
until_true 120 kubectl get --raw /readyz
unlimited=(--kubeconfig "$run/kubeconfig" --kube-api-qps 100000 --kube-api-burst 100000 --leader-elect=false --secure-port 0)
start kube-controller-manager "${unlimited[@]}" --service-account-private-key-file "$run/accounts.key" \
	--concurrent-deployment-syncs 50 --concurrent-replicaset-syncs 50 --concurrent-gc-syncs 50
start kube-scheduler "${unlimited[@]}"
start kwok --kubeconfig "$run/kubeconfig" --manage-all-nodes=true --cidr 10.8.0.0/14 --config "$run/kwok.yaml" --config "$run/stages.yaml"
for n in 0 1 2 3 4 5 6 7 8 9; do
	printf -- '---\n{apiVersion: v1, kind: Node, metadata: {name: kwok-%s, annotations: {kwok.x-k8s.io/node: fake}},\n' "$n"
	printf ' status: {capacity: {cpu: 1k, memory: 1Ti, pods: 1M}, allocatable: {cpu: 1k, memory: 1Ti, pods: 1M}}}\n'
done | kubectl apply -f - >/dev/null
until_true 60 all_ready
timeout 1800 bin/mend bench --kubeconfig "$run/kubeconfig" --replicas "$replicas" --pid "$(IFS=, && echo "${pids[*]}")"
