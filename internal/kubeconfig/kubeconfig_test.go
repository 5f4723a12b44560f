package kubeconfig

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

func config(t *testing.T, name, ca string) []byte {
	t.Helper()
	made := clientcmdapi.NewConfig()
	made.Clusters[name] = &clientcmdapi.Cluster{Server: "https://127.0.0.1:6443", CertificateAuthorityData: []byte(ca)}
	made.AuthInfos[name] = &clientcmdapi.AuthInfo{Token: name}
	made.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	made.CurrentContext = name
	text, err := clientcmd.Write(*made)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestWriteReplacesALinkInsteadOfFollowingIt(t *testing.T) {
	dir := t.TempDir()
	victim, path := filepath.Join(dir, "victim"), filepath.Join(dir, ".kube", "mend")
	if err := os.WriteFile(victim, []byte("precious"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(victim, path); err != nil {
		t.Fatal(err)
	}
	if err := Do(Write, path, []byte("new")); err != nil {
		t.Fatal(err)
	}
	if text, _ := os.ReadFile(victim); string(text) != "precious" {
		t.Errorf("the link's target now reads %q", text)
	}
	info, err := os.Lstat(path)
	if err != nil || info.Mode() != 0o600 {
		t.Errorf("mode = %v, %v; want a regular file with 0600", info.Mode(), err)
	}
}

func TestWriteRefusesADirectory(t *testing.T) {
	dir := t.TempDir()
	if err := Do(Write, dir, nil); err == nil || !strings.Contains(err.Error(), dir) {
		t.Errorf("error = %v, want one that names %s", err, dir)
	}
}

func TestMergeKeepsWhatIsThere(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config")
	if err := os.WriteFile(path, config(t, "prod", "ca-prod"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 { // merging again changes nothing
		if err := Do(Merge, path, config(t, "mend", "ca-mend")); err != nil {
			t.Fatal(err)
		}
		merged, err := clientcmd.LoadFromFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if merged.CurrentContext != "prod" || len(merged.Contexts) != 2 || merged.AuthInfos["mend"].Token != "mend" {
			t.Errorf("merged = %+v", merged)
		}
	}
}

func TestMergeLeavesABrokenFileAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config")
	const broken = "clusters: [\n"
	if err := os.WriteFile(path, []byte(broken), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Do(Merge, path, config(t, "mend", "ca")); err == nil || !strings.Contains(err.Error(), "left as it is") {
		t.Errorf("error = %v", err)
	}
	if text, _ := os.ReadFile(path); string(text) != broken {
		t.Errorf("file = %q", text)
	}
}

func TestRemoveTouchesOnlyItsOwnInstance(t *testing.T) {
	path := filepath.Join(t.TempDir(), "mend")
	if err := os.WriteFile(path, config(t, "mend", "another instance's"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Do(Remove, path, config(t, "mend", "ours")); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Errorf("another instance's file is gone: %v", err)
	}
	if err := Do(Remove, path, config(t, "mend", "another instance's")); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("our own file is still there: %v", err)
	}
}
