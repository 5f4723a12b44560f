package garbage

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"mend/internal/controller/namespace"
	"mend/internal/testkit"
)

func (w *world) accountAppears(ns string) (account *corev1.ServiceAccount) {
	w.Helper()
	testkit.WaitFor(w, "the account of "+ns, func() (err error) {
		account, err = w.client.CoreV1().ServiceAccounts(ns).Get(w.ctx, "default", metav1.GetOptions{})
		return err
	})
	return account
}

func (w *world) caIsRight(ns string, not types.UID) (m *corev1.ConfigMap) {
	w.Helper()
	testkit.WaitFor(w, "the CA of "+ns, func() (err error) {
		m, err = w.client.CoreV1().ConfigMaps(ns).Get(w.ctx, "kube-root-ca.crt", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if len(m.Data) != 1 || m.Data["ca.crt"] != "the CA" || m.UID == not || m.Annotations["kubernetes.io/description"] == "" {
			return fmt.Errorf("has %v, %v", m.Data, m.ObjectMeta)
		}
		return nil
	})
	return m
}

func TestEachNamespaceHasAnAccountAndTheCA(t *testing.T) {
	w := everything(t)
	w.namespace("shop")
	for _, ns := range append([]string{"shop"}, namespace.System...) {
		w.accountAppears(ns)
		w.caIsRight(ns, "")
	}

	account := w.accountAppears("shop")
	w.ok(w.client.CoreV1().ServiceAccounts("shop").Delete(w.ctx, "default", metav1.DeleteOptions{}))
	testkit.WaitFor(t, "another account", func() error {
		if found := w.accountAppears("shop"); found.UID == account.UID {
			return fmt.Errorf("the old one")
		}
		return nil
	})

	ca := w.caIsRight("shop", "")
	w.patch(ca, `{"data":{"ca.crt":"forged","more":"x"},"metadata":{"annotations":null}}`)
	w.caIsRight("shop", "")
	w.ok(w.client.CoreV1().ConfigMaps("shop").Delete(w.ctx, ca.Name, metav1.DeleteOptions{}))
	ca = w.caIsRight("shop", ca.UID)
	w.patch(ca, `{"data":{"ca.crt":"forged"},"immutable":true}`)
	w.caIsRight("shop", ca.UID)
}

func TestSystemNamespacesComeBack(t *testing.T) {
	w := everything(t)
	before := must(w.client.CoreV1().Namespaces().Get(w.ctx, "kube-node-lease", metav1.GetOptions{}))(t)
	w.deleteNamespace("kube-node-lease") // the other three cannot be deleted at all
	testkit.WaitFor(t, "kube-node-lease to come back", func() error {
		n, err := w.client.CoreV1().Namespaces().Get(w.ctx, "kube-node-lease", metav1.GetOptions{})
		if err == nil && n.UID == before.UID {
			return fmt.Errorf("the old one")
		}
		return err
	})
	w.accountAppears("kube-node-lease")
}
