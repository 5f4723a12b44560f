package agent

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	criclient "k8s.io/cri-client/pkg"

	"mend/internal/agent"
	"mend/internal/network"
	"mend/internal/runtime/containerd"
	"mend/internal/runtime/image"
)

const realLimit = 60 * time.Second

// needRealContainers skips where containers cannot run. With CI=true that is a
// failure: a run that proves nothing must not look green.
func needRealContainers(t testing.TB) {
	t.Helper()
	var reason string
	switch _, err := containerd.Bundle(); {
	case err != nil:
		reason = err.Error()
	case os.Geteuid() != 0:
		reason = "real containers need root"
	default:
		return
	}
	if os.Getenv("CI") == "true" {
		t.Fatal(reason)
	}
	t.Skip(reason)
}

// newRealWorld runs the agent on containerd and a network of its own.
func newRealWorld(t testing.TB) *world {
	t.Helper()
	needRealContainers(t)
	var b [3]byte
	if _, err := rand.Read(b[:]); err != nil {
		t.Fatal(err)
	}
	id := hex.EncodeToString(b[:])
	data, run := filepath.Join(t.TempDir(), "data"), filepath.Join("/run/mend", id)
	log := slog.New(slog.DiscardHandler)
	netCfg := network.Config{InstanceID: id, DataDir: data, RunDir: run, Log: log}
	cfg := containerd.Config{InstanceID: id, DataDir: data, RunDir: run, CgroupParent: "/mend-" + id, Log: log}
	ctx, cancel := context.WithTimeout(t.Context(), realLimit)
	defer cancel()
	var sup *containerd.Supervisor
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), realLimit)
		defer cancel()
		if sup != nil {
			if err := sup.Stop(ctx); err != nil {
				t.Errorf("stop: %v", err)
			}
		}
		if err := errors.Join(containerd.Purge(ctx, cfg), network.Teardown(ctx, netCfg)); err != nil {
			t.Errorf("purge: %v", err)
		}
	})
	net, err := network.Setup(ctx, netCfg)
	if err != nil {
		t.Fatal(err)
	}
	cfg.CNIConfDir = net.ConfDir
	if sup, err = containerd.Start(ctx, cfg); err != nil {
		t.Fatal(err)
	}
	runtime, err := criclient.NewRemoteRuntimeService(ctx, sup.Endpoint(), realLimit, nil, false)
	if err != nil {
		t.Fatal(err)
	}
	images, err := criclient.NewRemoteImageService(ctx, sup.Endpoint(), realLimit, nil, false)
	if err != nil {
		t.Fatal(err)
	}
	builtin, err := image.Connect(sup.Endpoint())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { builtin.Close() })
	open := func() (io.ReadCloser, error) { return os.Open(filepath.Join(sup.BinDir(), containerd.ImagesFile)) }
	if err := builtin.EnsureBuiltin(ctx, filepath.Base(sup.BinDir()), open); err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, runtime: runtime, supervisor: sup, config: agent.Config{
		Runtime: runtime, Images: images, DataDir: filepath.Join(data, "agent"), LogDir: filepath.Join(data, "pod-logs"),
		CgroupParent: cfg.CgroupParent, NodeIP: net.Gateway.String(),
	}}
	w.serve()
	return w
}
