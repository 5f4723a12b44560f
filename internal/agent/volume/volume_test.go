package volume

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"mend/internal/agent/podspec"
)

type objects struct{ data map[string]map[string]string }

func (o objects) ConfigMap(_ context.Context, _, name string) (*v1.ConfigMap, error) {
	if d, ok := o.data[name]; ok {
		return &v1.ConfigMap{Data: d}, nil
	}
	return nil, apierrors.NewNotFound(v1.Resource("configmap"), name)
}

func (o objects) Secret(_ context.Context, _, name string) (*v1.Secret, error) {
	if d, ok := o.data[name]; ok {
		s := &v1.Secret{Data: map[string][]byte{}}
		for k, v := range d {
			s.Data[k] = []byte(v)
		}
		return s, nil
	}
	return nil, apierrors.NewNotFound(v1.Resource("secret"), name)
}

func (objects) Services() ([]*v1.Service, error) { return nil, nil }

func (objects) Token(_ context.Context, _ *v1.Pod, audience string, _ *int64) (string, error) {
	return "token for " + audience, nil
}

func manager(t *testing.T, m Mounter) *Manager {
	t.Helper()
	o := objects{map[string]map[string]string{"cm": {"a": "1", "b": "2"}, "empty": {}}}
	return &Manager{Host: podspec.Host{PodsDir: t.TempDir()}, Sources: o, Tokens: o, Mounter: m}
}

func podWith(volumes ...v1.Volume) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: "uid", Labels: map[string]string{"app": "x"}},
		Spec: v1.PodSpec{Volumes: volumes, Containers: []v1.Container{{Name: "c"}}}}
}

func mode(m int32) *int32 { return &m }

func configMap(name string, items ...v1.KeyToPath) v1.Volume {
	return v1.Volume{Name: "v", VolumeSource: v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{
		LocalObjectReference: v1.LocalObjectReference{Name: name}, DefaultMode: mode(0o640), Items: items}}}
}

func TestFilesOfAVolume(t *testing.T) {
	m := manager(t, None{})
	source := v1.Volume{Name: "v", VolumeSource: v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{DefaultMode: mode(0o644), Sources: []v1.VolumeProjection{
		{ConfigMap: &v1.ConfigMapProjection{LocalObjectReference: v1.LocalObjectReference{Name: "cm"}, Items: []v1.KeyToPath{{Key: "a", Path: "deep/down/a", Mode: mode(0o600)}}}},
		{DownwardAPI: &v1.DownwardAPIProjection{Items: []v1.DownwardAPIVolumeFile{{Path: "name", FieldRef: &v1.ObjectFieldSelector{FieldPath: "metadata.name"}}}}},
		{ServiceAccountToken: &v1.ServiceAccountTokenProjection{Audience: "me", Path: "token"}},
	}}}}
	pod := podWith(source)
	if failed := m.SetUp(context.Background(), pod); len(failed) > 0 {
		t.Fatal(failed)
	}
	dir, _ := m.dir("uid", &source)
	for name, want := range map[string]string{"deep/down/a": "1", "name": "p", "token": "token for me"} {
		have, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || string(have) != want {
			t.Errorf("%s: %q, %v", name, have, err)
		}
	}
	info, err := os.Stat(filepath.Join(dir, "deep/down/a"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if link, err := os.Readlink(filepath.Join(dir, "token")); err != nil || link != "..data/token" {
		t.Errorf("token links to %q, %v", link, err)
	}
	// What is in place stays: the content is that of the Pod's start.
	source.Projected.Sources = nil
	if failed := m.SetUp(context.Background(), pod); len(failed) > 0 {
		t.Fatal(failed)
	}
	if _, err := os.Stat(filepath.Join(dir, "token")); err != nil {
		t.Error(err)
	}
	if err := m.TearDown("uid"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(m.Host.PodDir("uid")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("left: %v", err)
	}
}

func TestWhatCannotBeSetUpIsNamed(t *testing.T) {
	yes := true
	path, dirType := filepath.Join(t.TempDir(), "file"), v1.HostPathDirectory
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	cases := map[string]v1.Volume{
		`MountVolume.SetUp failed for volume "v" : configmap "none" not found`:                                                                                 configMap("none"),
		`MountVolume.SetUp failed for volume "v" : configmap references non-existent config key: z`:                                                            configMap("cm", v1.KeyToPath{Key: "z", Path: "z"}),
		`MountVolume.SetUp failed for volume "v" : invalid path: must not contain '..': a/../b`:                                                                configMap("cm", v1.KeyToPath{Key: "a", Path: "a/../b"}),
		`MountVolume.SetUp failed for volume "v" : hostPath type check failed: ` + path + ` is not a directory, it's a File`:                                   {Name: "v", VolumeSource: v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: path, Type: &dirType}}},
		`MountVolume.SetUp failed for volume "v" : references non-existent secret key: z`:                                                                      {Name: "v", VolumeSource: v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "cm", DefaultMode: mode(0o600), Items: []v1.KeyToPath{{Key: "z", Path: "z"}}}}},
		`Unable to attach or mount volumes: unmounted volumes=[v], unattached volumes=[], failed to process volumes=[v]: this kind of volume is not supported`: {Name: "v", VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "x"}}},
	}
	for want, v := range cases {
		failed := manager(t, None{}).SetUp(context.Background(), podWith(v))
		if len(failed) != 1 || failed[0].Error() != want {
			t.Errorf("got %v, want %q", failed, want)
		}
	}
	optional := configMap("none")
	optional.ConfigMap.Optional = &yes
	if failed := manager(t, None{}).SetUp(context.Background(), podWith(optional)); len(failed) != 0 {
		t.Errorf("an optional one that is missing: %v", failed)
	}
}

func TestHostPathsAreCreatedWhereAllowed(t *testing.T) {
	dir := t.TempDir()
	for kind, isDir := range map[v1.HostPathType]bool{v1.HostPathDirectoryOrCreate: true, v1.HostPathFileOrCreate: false} {
		path := filepath.Join(dir, string(kind))
		if err := CheckHostPath(&v1.HostPathVolumeSource{Path: path, Type: &kind}); err != nil {
			t.Error(err)
		}
		info, err := os.Stat(path)
		if err != nil || info.IsDir() != isDir {
			t.Errorf("%s: %v, %v", kind, info, err)
		}
	}
}

func TestMounts(t *testing.T) {
	m := manager(t, None{})
	pod := podWith(configMap("cm"), v1.Volume{Name: "e", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}})
	c := &pod.Spec.Containers[0]
	c.TerminationMessagePath = "dev/end"
	both := v1.MountPropagationBidirectional
	c.VolumeMounts = []v1.VolumeMount{
		{Name: "v", MountPath: "/config"}, {Name: "e", MountPath: "/e", SubPathExpr: "$(NAME)/x", MountPropagation: &both}, {Name: "e", MountPath: "ro", ReadOnly: true},
	}
	if failed := m.SetUp(context.Background(), pod); len(failed) > 0 {
		t.Fatal(failed)
	}
	mounts, err := m.Mounts(t.Context(), pod, c, []string{"10.1.1.1"}, []podspec.EnvVar{{Name: "NAME", Value: "n"}})
	if err != nil {
		t.Fatal(err)
	}
	if len(mounts) != 5 || !mounts[0].Readonly || !strings.HasSuffix(mounts[1].HostPath, "/e/n/x") || mounts[1].Propagation == 0 ||
		mounts[2].ContainerPath != "/ro" || !mounts[2].Readonly || mounts[3].ContainerPath != "/etc/hosts" || mounts[4].ContainerPath != "/dev/end" {
		t.Errorf("%v", mounts)
	}
	c.VolumeMounts = []v1.VolumeMount{{Name: "e", MountPath: "/etc/hosts"}}
	mounts, err = m.Mounts(t.Context(), pod, c, []string{"10.1.1.1"}, nil)
	if err != nil || len(mounts) != 2 {
		t.Errorf("a Pod that mounts /etc/hosts itself: %v, %v", mounts, err)
	}
}

func TestMountsThatCannotBe(t *testing.T) {
	m := manager(t, None{})
	pod := podWith(v1.Volume{Name: "e", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}})
	c := &pod.Spec.Containers[0]
	for want, vm := range map[string]v1.VolumeMount{
		`cannot find volume "gone" to mount into container "c"`:       {Name: "gone", MountPath: "/x"},
		"missing value for A, B":                                      {Name: "e", MountPath: "/x", SubPathExpr: "$(B)$(A)"},
		"error SubPath `/abs` must not be an absolute path":           {Name: "e", MountPath: "/x", SubPath: "/abs"},
		"unable to provision SubPath `a/../b`: must not contain '..'": {Name: "e", MountPath: "/x", SubPath: "a/../b"},
	} {
		c.VolumeMounts = []v1.VolumeMount{vm}
		if _, err := m.Mounts(t.Context(), pod, c, nil, nil); err == nil || err.Error() != want {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

func TestTmpfsSize(t *testing.T) {
	limit := resource.MustParse("10Mi")
	allocatable := v1.ResourceList{v1.ResourceMemory: resource.MustParse("1Gi")}
	pod := podWith()
	sized := &v1.Volume{VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{SizeLimit: &limit}}}
	plain := &v1.Volume{VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}}
	if got := tmpfsSize(pod, sized, allocatable); got != 10<<20 {
		t.Errorf("with a limit: %d", got)
	}
	if got := tmpfsSize(pod, plain, allocatable); got != 1<<30 {
		t.Errorf("without: %d", got)
	}
	pod.Spec.Containers[0].Resources.Limits = v1.ResourceList{v1.ResourceMemory: resource.MustParse("5Mi")}
	if got := tmpfsSize(pod, sized, allocatable); got != 5<<20 {
		t.Errorf("in a Pod that may use less: %d", got)
	}
}

// needRoot skips where nothing may be mounted. With CI=true that is a failure.
func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() == 0 {
		return
	}
	if os.Getenv("CI") == "true" {
		t.Fatal("mounting needs root")
	}
	t.Skip("mounting needs root")
}

func TestMemoryIsMountedAndUnmounted(t *testing.T) {
	needRoot(t)
	m := manager(t, Kernel{})
	group, limit := int64(2000), resource.MustParse("1Mi")
	v := v1.Volume{Name: "m", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{Medium: v1.StorageMediumMemory, SizeLimit: &limit}}}
	pod := podWith(v)
	pod.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: &group}
	for range 2 { // it may be repeated
		if failed := m.SetUp(context.Background(), pod); len(failed) > 0 {
			t.Fatal(failed)
		}
	}
	dir, _ := m.dir("uid", &v)
	points, err := Kernel{}.MountsBelow(m.Host.PodDir("uid"))
	if err != nil || len(points) != 1 || points[0] != dir {
		t.Fatalf("mounts: %v, %v", points, err)
	}
	info, err := os.Stat(dir)
	if err != nil || info.Sys().(*syscall.Stat_t).Gid != 2000 || info.Mode()&os.ModeSetgid == 0 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if err := os.WriteFile(filepath.Join(dir, "big"), make([]byte, 2<<20), 0o600); err == nil {
		t.Error("the size is not limited")
	}
	if err := m.TearDown("uid"); err != nil {
		t.Fatal(err)
	}
	if points, err = (Kernel{}).MountsBelow(m.Host.PodsDir); err != nil || len(points) != 0 {
		t.Errorf("left: %v, %v", points, err)
	}
}

func TestSubPathDoesNotLeaveItsVolume(t *testing.T) {
	needRoot(t)
	root := t.TempDir()
	volume, target := filepath.Join(root, "v"), filepath.Join(root, "target")
	if err := os.MkdirAll(filepath.Join(volume, "dir"), 0o755); err != nil {
		t.Fatal(err)
	}
	for link, to := range map[string]string{"out": "/etc", "up": "../..", "in": "dir"} {
		if err := os.Symlink(to, filepath.Join(volume, link)); err != nil {
			t.Fatal(err)
		}
	}
	k := Kernel{}
	t.Cleanup(func() {
		if err := k.UnmountBelow(root); err != nil {
			t.Error(err)
		}
	})
	for _, sub := range []string{"out", "out/passwd", "up", "up/x", "in/../../.."} {
		if path, err := k.SubPath(volume, sub, target); err == nil {
			t.Errorf("%s leads to %s", sub, path)
		}
	}
	for _, sub := range []string{"dir", "in", "new/deep"} {
		path, err := k.SubPath(volume, sub, target)
		if err != nil || path != target {
			t.Fatalf("%s: %s, %v", sub, path, err)
		}
		if err := os.WriteFile(filepath.Join(target, "f"), []byte(sub), 0o600); err != nil {
			t.Fatal(err)
		}
		if have, err := os.ReadFile(filepath.Join(volume, sub, "f")); err != nil || string(have) != sub {
			t.Errorf("%s: %q, %v", sub, have, err)
		}
	}
}

func TestWhatIsMountedBehindALinkIsNotEmptied(t *testing.T) {
	needRoot(t)
	m := manager(t, Kernel{})
	real, link := t.TempDir(), filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(real, link); err != nil {
		t.Fatal(err)
	}
	m.Host.PodsDir = link
	t.Cleanup(func() {
		if err := (Kernel{}).UnmountBelow(real); err != nil {
			t.Error(err)
		}
	})
	theirs := t.TempDir()
	file := filepath.Join(theirs, "dir", "file")
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Mounter.SubPath(theirs, "dir", filepath.Join(m.Host.PodDir("uid"), "volume-subpaths", "v", "c", "0")); err != nil {
		t.Fatal(err)
	}
	if err := m.TearDown("uid"); err != nil {
		t.Error(err)
	}
	if text, err := os.ReadFile(file); err != nil || string(text) != "kept" {
		t.Errorf("the file on the host: %q, %v", text, err)
	}
}

func TestTearDownRefusesOddUIDs(t *testing.T) {
	m := manager(t, None{})
	for _, uid := range []string{"", "..", "a/b"} {
		if err := m.TearDown(types.UID(uid)); err == nil {
			t.Errorf("tore down %q", uid)
		}
	}
}
