package main

// webSteps follow "The Reconcile Loop in Practice".
func webSteps() []step {
	return []step{
		{section: "The reconcile loop in practice: declare the desired state",
			command: "kubectl apply -f web.yaml", check: says("deployment.apps/web created")},
		{command: "kubectl rollout status deploy/web", check: shows("three copies are up", `^deployment "web" successfully rolled out$`)},
		{command: "kubectl get deploy,rs,pods", check: shows("a Deployment, its ReplicaSet, its Pods",
			`^deployment.apps/web +3/3 +3 +3 `, `^replicaset.apps/web-[a-z0-9]+ +3 +3 +3 `, `^pod/web-[a-z0-9]+-[a-z0-9]{5} +1/1 +Running +0 `),
			find: "good", pattern: `replicaset.apps/(web-[a-z0-9]+)`},
		{section: "If the labels don't line up, apply is rejected outright",
			command: "sed 's/labels: { app: web }/labels: { app: other }/' web.yaml | kubectl apply -f -", fails: true,
			check: shows("the message names the field", `^The Deployment "web" is invalid: spec.template.metadata.labels: Invalid value: \{"app":"other"\}: `+"`selector` does not match template `labels`$")},
		{section: "Change the version to one that does not exist: the old one stays",
			command: "kubectl set image deploy/web web=web:2.0", check: says("deployment.apps/web image updated")},
		{command: "kubectl get pods -l app=web", until: true,
			check: shows("the new image cannot be pulled, and two of three old Pods still serve", `(ErrImagePull|ImagePullBackOff)`, `(?s){good}-.* 1/1 +Running.*{good}-.* 1/1 +Running`),
			find:  "stuck", pattern: `(?m)^(web-\S+) +0/1 +(?:ErrImagePull|ImagePullBackOff)`},
		{command: "kubectl rollout status deploy/web --timeout=2s", fails: true,
			check: shows("it waits", `^Waiting for deployment "web" rollout to finish: `)},
		{command: "kubectl get deploy web", check: shows("at least two of three are available", `^web +[23]/3 +2 +[23] `)},
		{command: "kubectl describe pod {stuck}", until: true, check: shows("describe says why",
			`Reason: +(ErrImagePull|ImagePullBackOff)`, `Warning +Failed .*kubelet +Failed to pull image "web:2.0": `)},
		{command: "kubectl get events --field-selector involvedObject.name={stuck}", check: shows("so do the events",
			`Normal +Scheduled +pod/{stuck} +Successfully assigned default/{stuck} to `, `Warning +Failed +pod/{stuck} +Error: ErrImagePull`)},
		{command: "kubectl logs {stuck}", fails: true, check: shows("logs says it too",
			`container "web" in pod "{stuck}" is waiting to start: (trying and failing to pull image|image can't be pulled)`)},
		{section: "Broke: one-step rollback",
			command: "kubectl rollout undo deploy/web", check: says("deployment.apps/web rolled back")},
		{command: "kubectl rollout status deploy/web", check: shows("back on the old version", `^deployment "web" successfully rolled out$`)},
		{command: "kubectl get rs -l app=web", until: true, check: shows("the good ReplicaSet has all three", `^{good} +3 +3 +3 `).rows(2)},
		{section: "Change the count: the loop fills up to 5",
			command: "kubectl scale deploy/web --replicas=5", check: says("deployment.apps/web scaled")},
		{command: "kubectl get deploy web", until: true, check: shows("five of five", `^web +5/5 +5 +5 `)},
	}
}

// configSteps are the same document's pit: a ConfigMap is not the template.
func configSteps() []step {
	return []step{
		{section: "A common pit: an edited ConfigMap starts no rollout",
			command: "kubectl create configmap greeting --from-literal=GREETING=hello", check: says("configmap/greeting created")},
		{command: "kubectl set env deploy/web --from=configmap/greeting", check: says("deployment.apps/web env updated")},
		{command: "kubectl rollout status deploy/web", check: shows("a template change rolls", `^deployment "web" successfully rolled out$`)},
		{command: "kubectl get deploy web -o jsonpath='{.metadata.annotations.deployment\\.kubernetes\\.io/revision}'", check: shows("its revision", `^\d+$`), find: "revision", pattern: `^(\d+)`},
		{command: "EDITOR='sed -i s/hello/goodbye/' kubectl edit configmap greeting", check: says("configmap/greeting edited")},
		{command: "kubectl get deploy web -o jsonpath='{.metadata.annotations.deployment\\.kubernetes\\.io/revision}'", check: says("{revision}")},
		{command: "kubectl exec deploy/web -- env", real: true, check: shows("the Pods keep the old value", `^GREETING=hello$`)},
		{command: "kubectl rollout restart deploy/web", check: says("deployment.apps/web restarted")},
		{command: "kubectl rollout status deploy/web", check: shows("restarted", `^deployment "web" successfully rolled out$`)},
		{command: "kubectl exec deploy/web -- env", until: true, real: true, check: shows("now the new one", `^GREETING=goodbye$`)},
		{section: "A request that no node can fill stays Pending and says why",
			command: `kubectl run huge --image=mend.local/web:1.0 --overrides='{"spec":{"containers":[{"name":"huge","image":"mend.local/web:1.0","resources":{"requests":{"cpu":"100k"}}}]}}'`,
			check:   says("pod/huge created")},
		{command: "kubectl describe pod huge", until: true, check: shows("Pending, with the reason",
			`^Status: +Pending$`, `Warning +FailedScheduling .* 0/1 nodes are available: 1 Insufficient cpu\.`)},
		{command: "kubectl get pod huge", check: shows("still Pending", `^huge +0/1 +Pending +0 `)},
		{command: "kubectl delete pod huge", check: says(`pod "huge" deleted from default namespace`)},
		{command: "kubectl delete -f web.yaml", check: says(`deployment.apps "web" deleted from default namespace`)},
		{command: "kubectl get pods", until: true, check: says("No resources found in default namespace.")},
	}
}
