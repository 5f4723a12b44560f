package pki

import (
	"fmt"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Kubeconfig is a complete kubeconfig file for user in groups on server (an
// https URL). A file cannot renew itself, so its certificate lasts as long as
// the authority's; whoever writes it keeps it private.
func (a *Authority) Kubeconfig(server, user string, groups []string) ([]byte, error) {
	cert, key, err := a.ClientCert(user, groups, 0)
	if err != nil {
		return nil, err
	}
	config := clientcmdapi.NewConfig()
	config.Clusters["mend"] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: a.pem}
	config.AuthInfos["mend-"+user] = &clientcmdapi.AuthInfo{ClientCertificateData: cert, ClientKeyData: key}
	config.Contexts["mend"] = &clientcmdapi.Context{Cluster: "mend", AuthInfo: "mend-" + user}
	config.CurrentContext = "mend"
	text, err := clientcmd.Write(*config)
	if err != nil {
		return nil, fmt.Errorf("pki: kubeconfig: %w", err)
	}
	return text, nil
}
