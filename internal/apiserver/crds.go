package apiserver

import (
	"encoding/json"
	"net/http"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// crdsPath is where kubectl looks, before it says that it does not know a kind,
// whether somebody has defined it. Without an answer it would complain about the
// missing list instead of the wrong kind.
const crdsPath = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

// serveNoCRDs answers that list: there are none. The group is not part of
// discovery, since nothing else of it is served.
func serveNoCRDs(w http.ResponseWriter, req *http.Request) {
	if req.Method != http.MethodGet {
		http.Error(w, "custom resource definitions are not served", http.StatusMethodNotAllowed)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(struct {
		metav1.TypeMeta `json:",inline"`
		Metadata        metav1.ListMeta `json:"metadata"`
		Items           []struct{}      `json:"items"`
	}{
		TypeMeta: metav1.TypeMeta{APIVersion: "apiextensions.k8s.io/v1", Kind: "CustomResourceDefinitionList"},
		Metadata: metav1.ListMeta{ResourceVersion: "1"},
		Items:    []struct{}{},
	})
}
