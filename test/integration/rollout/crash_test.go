package rollout

import (
	"math/rand/v2"
	"testing"
	"time"

	apps "k8s.io/api/apps/v1"
)

// Progress is kept in the API only: loops that are killed again and again, in the
// middle of whatever they do, finish the rollout and never break its bounds.
func TestLoopsKilledInTheMiddleOfARollout(t *testing.T) {
	c := newCluster(t)
	stop := c.startLoops(t)
	w := c.newWorld(t)
	w.web(20, "web:1")
	w.rolledOut()
	check := w.watchBounds(15, 25)
	w.edit(setImage("web:2"))
	draw := rand.New(rand.NewPCG(1, 2))
	for range 12 {
		limit := time.NewTimer(time.Duration(draw.IntN(60)) * time.Millisecond)
		<-limit.C
		stop()
		stop = c.startLoops(t)
	}
	t.Cleanup(stop)
	d := w.rolledOut()
	check()
	if old := w.replicaSet("web:1"); *old.Spec.Replicas != 0 || len(w.pods()) != 20 {
		t.Errorf("the old ReplicaSet wants %d Pods; %d Pods in all", *old.Spec.Replicas, len(w.pods()))
	}
	if c := conditionOf(d, apps.DeploymentAvailable); c.Reason != "MinimumReplicasAvailable" {
		t.Errorf("Available is %+v", c)
	}
}
