package scheduler

import (
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"
)

// bigWorld has 1,000 nodes and 10,000 Pods of 100 controllers on them.
func bigWorld() *Cluster {
	w := world{nodes: nodesNamed(1000)}
	for i := range 10000 {
		w.pods = append(w.pods, aPod(fmt.Sprintf("pod-%d", i), on(fmt.Sprintf("node-%d", i%1000)),
			ownedBy(fmt.Sprintf("rs-%d", i%100)), requests("cpu", "200m"), requests("memory", "256Mi")))
	}
	return w.cluster()
}

// One Pod placed among 1,000 nodes with 10,000 Pods.
func BenchmarkPlanOnThousandNodes(b *testing.B) {
	c, pod := bigWorld(), aPod("new", ownedBy("rs-1"), requests("cpu", "200m"))
	for b.Loop() {
		if MakePlan(c, pod).Bind == nil {
			b.Fatal("refused")
		}
	}
}

// One Pod refused by 1,000 nodes, every one with its reason.
func BenchmarkRefusalOnThousandNodes(b *testing.B) {
	c, pod := bigWorld(), aPod("new", ownedBy("rs-1"), requests("cpu", "3"))
	for b.Loop() {
		if MakePlan(c, pod).Refuse == nil {
			b.Fatal("placed")
		}
	}
}

// One Pod of the 10,000 changes.
func BenchmarkSnapshotUpdate(b *testing.B) {
	c := bigWorld()
	small, large := aPod("pod-5", on("node-5"), requests("cpu", "100m")), aPod("pod-5", on("node-5"), requests("cpu", "200m"))
	for i := 0; b.Loop(); i++ {
		c.SetPod([]*v1.Pod{small, large}[i%2])
	}
}

// 10,000 Pods placed one after another on 1,000 empty nodes.
func BenchmarkPlaceTenThousandPods(b *testing.B) {
	pods := make([]*v1.Pod, 10000)
	for i := range pods {
		pods[i] = aPod(fmt.Sprintf("pod-%d", i), ownedBy(fmt.Sprintf("rs-%d", i%100)), requests("cpu", "200m"))
	}
	for b.Loop() {
		c := world{nodes: nodesNamed(1000)}.cluster()
		for _, pod := range pods {
			d := DemandOf(pod)
			plan := planFor(c, d)
			if plan.Bind == nil {
				b.Fatal("refused")
			}
			c.assume(pod.UID, d, plan.Bind.Node)
		}
	}
}

// A Pod ends while 10,000 of 100 kinds wait that it makes no room for.
func BenchmarkRoomWhileTenThousandWait(b *testing.B) {
	c, w := bigWorld(), newWaiting()
	for i := range 10000 {
		d := DemandOf(aPod(fmt.Sprintf("waits-%d", i), requests("cpu", fmt.Sprintf("%dm", 4000+i%100))))
		w.park(fmt.Sprint("default/waits-", i), d.shape(), d, &Refusal{}, c.version)
	}
	for b.Loop() {
		if len(w.roomOn(c, "node-5")) != 0 {
			b.Fatal("room")
		}
	}
}
