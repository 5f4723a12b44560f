package apiserver

import (
	"context"
	"fmt"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/kubernetes/pkg/api/pod"
	"k8s.io/kubernetes/pkg/apis/apps"
	appsvalidation "k8s.io/kubernetes/pkg/apis/apps/validation"
	"k8s.io/kubernetes/pkg/features"
)

var templatePath = field.NewPath("spec", "template")

var deploymentRules = rules{
	resets: []string{"status"},
	prepareCreate: onObject(func(d *apps.Deployment) {
		d.Status = apps.DeploymentStatus{}
		d.Generation = 1
		pod.DropDisabledTemplateFields(&d.Spec.Template, nil)
	}),
	prepareUpdate: onChange(func(d, old *apps.Deployment) {
		d.Status = old.Status
		pod.DropDisabledTemplateFields(&d.Spec.Template, &old.Spec.Template)
		// Annotations count too: they are copied to the ReplicaSets.
		if !apiequality.Semantic.DeepEqual(d.Spec, old.Spec) || !apiequality.Semantic.DeepEqual(d.Annotations, old.Annotations) {
			d.Generation = old.Generation + 1
		}
	}),
	validate: checkObject(func(d *apps.Deployment) field.ErrorList {
		return appsvalidation.ValidateDeployment(d, pod.GetValidationOptionsFromPodTemplate(&d.Spec.Template, nil))
	}),
	validateUpdate: checkChange(func(d, old *apps.Deployment) field.ErrorList {
		return appsvalidation.ValidateDeploymentUpdate(d, old, pod.GetValidationOptionsFromPodTemplate(&d.Spec.Template, &old.Spec.Template))
	}),
	warnCreate: warnObject(func(ctx context.Context, d *apps.Deployment) []string {
		return append(podNameWarning(d.Name), pod.GetWarningsForPodTemplate(ctx, templatePath, &d.Spec.Template, nil)...)
	}),
	warnUpdate: warnChange(func(ctx context.Context, d, old *apps.Deployment) []string {
		if d.Generation == old.Generation {
			return nil
		}
		return pod.GetWarningsForPodTemplate(ctx, templatePath, &d.Spec.Template, &old.Spec.Template)
	}),
}

var deploymentStatusRules = rules{
	resets: []string{"spec", "metadata.labels"},
	prepareUpdate: onChange(func(d, old *apps.Deployment) {
		d.Spec, d.Labels = old.Spec, old.Labels
		if !enabled(features.DeploymentReplicaSetTerminatingReplicas) && old.Status.TerminatingReplicas == nil {
			d.Status.TerminatingReplicas = nil
		}
	}),
	validateUpdate: checkChange(appsvalidation.ValidateDeploymentStatusUpdate),
}

var replicaSetRules = rules{
	resets: []string{"status"},
	prepareCreate: onObject(func(r *apps.ReplicaSet) {
		r.Status = apps.ReplicaSetStatus{}
		r.Generation = 1
		pod.DropDisabledTemplateFields(&r.Spec.Template, nil)
	}),
	prepareUpdate: onChange(func(r, old *apps.ReplicaSet) {
		r.Status = old.Status
		pod.DropDisabledTemplateFields(&r.Spec.Template, &old.Spec.Template)
		if !apiequality.Semantic.DeepEqual(r.Spec, old.Spec) {
			r.Generation = old.Generation + 1
		}
	}),
	validate: checkObject(func(r *apps.ReplicaSet) field.ErrorList {
		return appsvalidation.ValidateReplicaSet(r, pod.GetValidationOptionsFromPodTemplate(&r.Spec.Template, nil))
	}),
	validateUpdate: checkChange(func(r, old *apps.ReplicaSet) field.ErrorList {
		return appsvalidation.ValidateReplicaSetUpdate(r, old, pod.GetValidationOptionsFromPodTemplate(&r.Spec.Template, &old.Spec.Template))
	}),
	warnCreate: warnObject(func(ctx context.Context, r *apps.ReplicaSet) []string {
		return append(podNameWarning(r.Name), pod.GetWarningsForPodTemplate(ctx, templatePath, &r.Spec.Template, nil)...)
	}),
	warnUpdate: warnChange(func(ctx context.Context, r, old *apps.ReplicaSet) []string {
		if r.Generation == old.Generation {
			return nil
		}
		return pod.GetWarningsForPodTemplate(ctx, templatePath, &r.Spec.Template, &old.Spec.Template)
	}),
}

var replicaSetStatusRules = rules{
	resets: []string{"spec"},
	prepareUpdate: onChange(func(r, old *apps.ReplicaSet) {
		r.Spec = old.Spec
		if !enabled(features.DeploymentReplicaSetTerminatingReplicas) && old.Status.TerminatingReplicas == nil {
			r.Status.TerminatingReplicas = nil
		}
	}),
	validateUpdate: checkChange(appsvalidation.ValidateReplicaSetStatusUpdate),
}

func podNameWarning(name string) []string {
	problems := utilvalidation.IsDNS1123Label(name)
	if len(problems) == 0 {
		return nil
	}
	return []string{fmt.Sprintf("metadata.name: this is used in Pod names and hostnames, which can result in surprising behavior; a DNS label is recommended: %v", problems)}
}
