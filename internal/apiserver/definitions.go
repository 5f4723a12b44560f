package apiserver

import (
	"strings"

	utilopenapi "k8s.io/apiserver/pkg/util/openapi"
	openapicommon "k8s.io/kube-openapi/pkg/common"
	generatedopenapi "k8s.io/kubernetes/pkg/generated/openapi"
)

// documented are the packages whose types the served kinds consist of. The
// generated definitions know four times as many, which would stay in memory.
var documented = []string{
	"io.k8s.apimachinery.",
	"io.k8s.api.apps.v1.",
	"io.k8s.api.authentication.v1.",
	"io.k8s.api.authorization.v1.",
	"io.k8s.api.autoscaling.v1.",
	"io.k8s.api.coordination.v1.",
	"io.k8s.api.core.v1.",
	"io.k8s.api.discovery.v1.",
	"io.k8s.api.events.v1.",
	"io.k8s.api.networking.v1.",
	"io.k8s.api.policy.v1.",
}

// definitions describes the served types, without fields of disabled features.
func definitions() openapicommon.GetOpenAPIDefinitions {
	all := utilopenapi.GetOpenAPIDefinitionsWithoutDisabledFeatures(generatedopenapi.GetOpenAPIDefinitions)
	return func(ref openapicommon.ReferenceCallback) map[string]openapicommon.OpenAPIDefinition {
		kept := map[string]openapicommon.OpenAPIDefinition{}
		for name, definition := range all(ref) {
			for _, prefix := range documented {
				if strings.HasPrefix(name, prefix) {
					kept[name] = definition
				}
			}
		}
		return kept
	}
}
