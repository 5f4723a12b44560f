package app

import (
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"mend/internal/instance"
	"mend/internal/kubeconfig"
)

// adminUser is who the kubeconfig speaks as.
const adminUser = "mend-admin"

// writeKubeconfigs puts the administrator's kubeconfig into the data directory
// and where the caller's tools look for it.
func (p *process) writeKubeconfigs(tell Teller) error {
	config, err := p.pki.Kubeconfig(p.server, adminUser, []string{"system:masters"})
	if err != nil {
		return err
	}
	if err := p.writeOrKeep(p.instance.Kubeconfig(), config); err != nil {
		return err
	}
	owner, err := kubeconfig.Caller()
	if err != nil {
		return err
	}
	target := p.config.Kubeconfig
	if target == "" {
		target = owner.Default()
	}
	if target == "" {
		return nil
	}
	if target, err = filepath.Abs(target); err != nil {
		return err
	}
	if err := kubeconfig.As(owner, kubeconfig.Write, target, config); err != nil {
		if p.config.Kubeconfig != "" {
			return err
		}
		// A home that cannot be written does not keep the cluster from running.
		tell.Note("no kubeconfig at %s (%v); it is at %s", target, err, p.instance.Kubeconfig())
		return nil
	}
	// Remembered so that a purge finds it.
	return p.writeOrKeep(p.instance.Path(kubeconfigNote), []byte(target+"\n"))
}

// writeOrKeep writes a file of the data directory. On a full disk the one of an
// earlier start stays: mend runs on, read-only, rather than not at all.
func (p *process) writeOrKeep(path string, data []byte) error {
	err := instance.WriteFile(path, data, 0o600)
	if !errors.Is(err, unix.ENOSPC) {
		return err
	}
	if _, statErr := os.Stat(path); statErr != nil {
		return err
	}
	p.log.Warn("the disk is full; the file of an earlier start stays", "file", path)
	return nil
}

// kubeconfigNote is the file in the data directory that says where the caller's
// kubeconfig was written.
const kubeconfigNote = "kubeconfig-copy"
