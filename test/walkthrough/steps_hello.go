package main

// allSteps is the whole walk.
func allSteps() []step {
	var steps []step
	for _, part := range [][]step{startSteps(), webSteps(), configSteps(), barePodSteps(), helloSteps(), scaleSteps(), rolloutSteps(), endSteps()} {
		steps = append(steps, part...)
	}
	return steps
}

func startSteps() []step {
	return []step{
		{section: "Start", command: "mend version", check: shows("both versions", `^mend \S+$`, `^Kubernetes v1\.37\.`)},
		{command: "mend up --cpus 4 {up}", check: shows("Ready", `mend is ready after [0-9.]+ s: https://127\.0\.0\.1:\d+`, `next: mend kubectl`)},
		{command: "mend up {up}", check: shows("a second up says so and is content", `^mend is already running: https://127\.0\.0\.1:\d+ \(pid \d+\)$`)},
		{command: "mend image import --samples --data-dir {data}", real: true, check: shows("stand-ins for the documents' images", `stand-in`)},
		{command: "kubectl get nodes", until: true, check: shows("one Ready node", `^\S+ +Ready +\S+ +\S+ +v1\.37\.`).rows(1)},
	}
}

// barePodSteps begin "Self-Healing at Scale": a Pod of its own is mortal.
func barePodSteps() []step {
	return []step{
		{section: "Self-healing at scale: a bare Pod is mortal",
			command: "kubectl run nginx-pod --image=nginx", check: says("pod/nginx-pod created")},
		{command: "kubectl wait --for=condition=Ready pod/nginx-pod --timeout=120s", check: says("pod/nginx-pod condition met")},
		{command: "kubectl delete pod nginx-pod", check: says(`pod "nginx-pod" deleted from default namespace`)},
		{command: "kubectl get pods", check: says("No resources found in default namespace.")},
		{command: "kubectl run hello --image=nginx", check: says("pod/hello created")},
		{command: "kubectl wait --for=condition=Ready pod/hello --timeout=120s", check: says("pod/hello condition met")},
		{command: "kubectl delete pod hello", check: says(`pod "hello" deleted from default namespace`)},
	}
}

func helloSteps() []step {
	return []step{
		{section: "A Deployment is not",
			command: "kubectl apply -f deployment.yaml", check: says("deployment.apps/hello-deployment created")},
		{command: "kubectl get deployments", until: true, check: shows("3 of 3",
			`^NAME +READY +UP-TO-DATE +AVAILABLE +AGE$`, `^hello-deployment +3/3 +3 +3 +\d+s$`).rows(1)},
		{command: "kubectl get pods -l app=hello", check: shows("names are <deployment>-<hash>-<5>",
			`^NAME +READY +STATUS +RESTARTS +AGE$`, `^hello-deployment-[a-z0-9]+-[a-z0-9]{5} +1/1 +Running +0 +\d+s$`).rows(3),
			find: "pod", pattern: `(hello-deployment-[a-z0-9]+-[a-z0-9]{5})`},
		{command: "kubectl get replicasets", check: shows("one ReplicaSet",
			`^NAME +DESIRED +CURRENT +READY +AGE$`, `^hello-deployment-[a-z0-9]+ +3 +3 +3 +\d+s$`).rows(1),
			find: "old", pattern: `(hello-deployment-[a-z0-9]+)`},
		{section: "Self-healing in action: delete a Pod",
			command: "kubectl delete pod {pod}", check: says(`pod "{pod}" deleted from default namespace`)},
		{command: "kubectl get pods -l app=hello", until: true, check: shows("a new one took its place",
			`^{old}-[a-z0-9]{5} +1/1 +Running +0 `).lacks(`{pod}`).lacks(`0/1`).rows(3),
			find: "pod", pattern: `(hello-deployment-[a-z0-9]+-[a-z0-9]{5})`},
		{section: "Kill a container's process: it is restarted in place", real: true,
			command: "kubectl get pod {pod} -o jsonpath='{.metadata.uid}'", check: shows("its uid", `^[0-9a-f-]{36}$`), find: "uid", pattern: `^([0-9a-f-]{36})`},
		{command: "for f in $(find /sys/fs/cgroup -path '*{uid}*' -name cgroup.procs); do for p in $(cat $f); do grep -lz ^/bin/web /proc/$p/cmdline; done; done | cut -d/ -f3 | sort -un",
			real: true, check: livePID("a real process"), find: "pid", pattern: `^(\d+)`},
		{command: "kill -9 {pid}", real: true, check: says("")},
		{command: "kubectl get pods -l app=hello", until: true, real: true,
			check: shows("RESTARTS grew, the name stayed", `^{pod} +1/1 +Running +1 \(\d+s ago\) `).rows(3)},
	}
}

func scaleSteps() []step {
	return []step{
		{section: "Scaling",
			command: "kubectl scale deployment hello-deployment --replicas=5", check: says("deployment.apps/hello-deployment scaled")},
		{command: "kubectl get deployments hello-deployment", until: true, check: shows("5 of 5", `^hello-deployment +5/5 +5 +5 `)},
		{command: "kubectl get pods -l app=hello", check: shows("two new Pods", ` 1/1 +Running `).rows(5)},
		{command: "kubectl scale deployment hello-deployment --replicas=3", check: says("deployment.apps/hello-deployment scaled")},
		{command: "kubectl get pods -l app=hello", until: true, check: shows("back to three", ` 1/1 +Running `).lacks(`Terminating`).rows(3)},
	}
}

func rolloutSteps() []step {
	return []step{
		{section: "Rolling update",
			command: "kubectl set image deployment/hello-deployment hello=nginx:1.25", check: says("deployment.apps/hello-deployment image updated")},
		{command: "kubectl rollout status deployment/hello-deployment", check: shows("as the document shows",
			// On a busy machine the rollout is over before kubectl asks: then there is no wait to show.
			`\A(Waiting for deployment "hello-deployment" rollout to finish: \d+ (out of 3 new replicas have been updated|`+
				`old replicas are pending termination|of 3 updated replicas are available)\.\.\.\n)*`+
				`deployment "hello-deployment" successfully rolled out\n*\z`)},
		{command: "kubectl get replicasets", until: true, check: shows("the old ReplicaSet is at 0",
			`^{old} +0 +0 +0 `, `^hello-deployment-[a-z0-9]+ +3 +3 +3 `).rows(2)},
		{section: "Rollback",
			command: "kubectl rollout undo deployment/hello-deployment", check: shows("as the document shows", `^deployment.apps/hello-deployment rolled back$`)},
		{command: "kubectl rollout status deployment/hello-deployment", check: shows("done",
			`^deployment "hello-deployment" successfully rolled out$`)},
		{command: "kubectl get replicasets", until: true, check: shows("the old ReplicaSet is back", `^{old} +3 +3 +3 `).rows(2)},
		{command: "kubectl rollout history deployment/hello-deployment", check: shows("revision 1 became 3",
			`^deployment.apps/hello-deployment *$`, `^REVISION +CHANGE-CAUSE$`, `^2 +<none>$`, `^3 +<none>$`).lacks(`^1 `)},
		{command: "kubectl rollout undo deployment/hello-deployment --to-revision=1", fails: true,
			check: shows("a clear error", `^error: unable to find specified revision 1 in history$`)},
		{command: "kubectl rollout undo deployment/hello-deployment --to-revision=2", check: shows("as the document shows", `^deployment.apps/hello-deployment rolled back$`)},
		{command: "kubectl rollout status deployment/hello-deployment", check: shows("done", `^deployment "hello-deployment" successfully rolled out$`)},
		{section: "Troubleshooting, as the document suggests",
			command: "kubectl get pods -l app=hello", until: true, check: shows("three", ` 1/1 +Running `).lacks(`Terminating`).rows(3),
			find: "pod", pattern: `(hello-deployment-[a-z0-9]+-[a-z0-9]{5})`},
		{command: "kubectl describe pod {pod}", check: shows("its story",
			`^Status: +Running$`, `Normal +Scheduled .*default-scheduler +Successfully assigned default/{pod} to `, `Normal +Started .*kubelet .*Container started`)},
		{command: "kubectl logs {pod}", real: true, check: shows("what it printed", `\S`)},
		{command: "kubectl get events --field-selector reason=ScalingReplicaSet", check: shows("what the Deployment did",
			`Normal +ScalingReplicaSet +deployment/hello-deployment +Scaled up replica set {old} from 0 to 3`)},
	}
}

func endSteps() []step {
	return []step{
		{section: "End",
			command: "kubectl delete deployment hello-deployment", check: says(`deployment.apps "hello-deployment" deleted from default namespace`)},
		{command: "kubectl get pods", until: true, check: says("No resources found in default namespace.")},
		{command: "mend status --data-dir {data}", check: shows("all is well", `^state +running `).lacks(`NOT OK`), find: "instance", pattern: `instance ([0-9a-f]{6})`},
		{command: "mend down --purge --data-dir {data}", check: shows("down", `^mend is down`)},
	}
}
