package kubeconfig

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"mend/internal/instance"
)

// merge adds mend's cluster, user and context to the file at path and leaves
// everything else in it as it is. The current context stays what it was, unless
// there was none. A link at path is followed: it is the person's own file, and
// this runs with the person's rights.
func merge(path string, config []byte) error {
	ours, err := clientcmd.Load(config)
	if err != nil {
		return err
	}
	theirs := clientcmdapi.NewConfig()
	target := path
	if resolved, err := filepath.EvalSymlinks(path); err == nil {
		target = resolved
	}
	if text, err := os.ReadFile(target); err == nil {
		if theirs, err = clientcmd.Load(text); err != nil {
			return fmt.Errorf("%s cannot be read as a kubeconfig, and was left as it is: %w", path, err)
		}
	} else if !os.IsNotExist(err) {
		return err
	}
	for name, cluster := range ours.Clusters {
		theirs.Clusters[name] = cluster
	}
	for name, user := range ours.AuthInfos {
		theirs.AuthInfos[name] = user
	}
	for name, context := range ours.Contexts {
		theirs.Contexts[name] = context
	}
	if theirs.CurrentContext == "" {
		theirs.CurrentContext = ours.CurrentContext
	}
	merged, err := clientcmd.Write(*theirs)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(target), 0o700); err != nil {
		return err
	}
	return instance.WriteFile(target, merged, 0o600)
}

// sameAuthority says whether both kubeconfigs trust the same authority, which
// tells one instance of mend from another.
func sameAuthority(a, b []byte) bool {
	first, second := authority(a), authority(b)
	return len(first) > 0 && bytes.Equal(first, second)
}

func authority(text []byte) []byte {
	config, err := clientcmd.Load(text)
	if err != nil {
		return nil
	}
	context := config.Contexts[config.CurrentContext]
	if context == nil || config.Clusters[context.Cluster] == nil {
		return nil
	}
	return config.Clusters[context.Cluster].CertificateAuthorityData
}
