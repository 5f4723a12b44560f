package podspec

import (
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Paths that a container must not read (masked) or write (read-only), unless it
// asks for an unmasked /proc. The list is the one the OCI runtimes share.
var (
	maskedPaths = []string{
		"/proc/asound", "/proc/acpi", "/proc/interrupts", "/proc/kcore", "/proc/keys",
		"/proc/latency_stats", "/proc/timer_list", "/proc/timer_stats", "/proc/sched_debug",
		"/proc/scsi", "/sys/firmware", "/sys/devices/virtual/powercap",
	}
	readonlyPaths = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
)

// effective is the container's security context with what it inherits from the
// Pod's.
func effective(pod *v1.Pod, c *v1.Container) *v1.SecurityContext {
	sc := &v1.SecurityContext{}
	if own := c.SecurityContext; own != nil {
		sc = own.DeepCopy()
	}
	of := pod.Spec.SecurityContext
	if of == nil {
		return sc
	}
	if sc.SELinuxOptions == nil {
		sc.SELinuxOptions = of.SELinuxOptions
	}
	if sc.RunAsUser == nil {
		sc.RunAsUser = of.RunAsUser
	}
	if sc.RunAsGroup == nil {
		sc.RunAsGroup = of.RunAsGroup
	}
	if sc.RunAsNonRoot == nil {
		sc.RunAsNonRoot = of.RunAsNonRoot
	}
	return sc
}

// Image is what is known of the image a container starts from. UID is nil where
// the image names its user, Username "" where it gives a number.
type Image struct {
	Ref      string // the runtime's identifier
	UID      *int64
	Username string
}

func (h Host) containerSecurity(pod *v1.Pod, c *v1.Container, image Image, targetID string) (*runtimeapi.LinuxContainerSecurityContext, error) {
	sc := effective(pod, c)
	if err := checkNonRoot(pod, c, sc, image); err != nil {
		return nil, err
	}
	out := &runtimeapi.LinuxContainerSecurityContext{
		Capabilities:       capabilities(sc.Capabilities),
		SelinuxOptions:     selinux(sc.SELinuxOptions),
		RunAsUser:          int64Value(sc.RunAsUser),
		RunAsGroup:         int64Value(sc.RunAsGroup),
		Privileged:         isTrue(sc.Privileged),
		ReadonlyRootfs:     isTrue(sc.ReadOnlyRootFilesystem),
		NoNewPrivs:         sc.AllowPrivilegeEscalation != nil && !*sc.AllowPrivilegeEscalation,
		NamespaceOptions:   namespaces(pod),
		SupplementalGroups: supplementalGroups(pod),
	}
	if out.RunAsUser == nil {
		out.RunAsUser, out.RunAsUsername = int64Value(image.UID), image.Username
	}
	if sc.ProcMount == nil || *sc.ProcMount != v1.UnmaskedProcMount {
		out.MaskedPaths, out.ReadonlyPaths = maskedPaths, readonlyPaths
	}
	if targetID != "" && out.NamespaceOptions.Pid == runtimeapi.NamespaceMode_CONTAINER {
		out.NamespaceOptions.Pid = runtimeapi.NamespaceMode_TARGET
		out.NamespaceOptions.TargetId = targetID
	}
	var err error
	if out.SupplementalGroupsPolicy, err = groupsPolicy(pod); err != nil {
		return nil, err
	}
	if out.Seccomp, err = h.seccomp(pod, c); err != nil {
		return nil, err
	}
	out.Apparmor, err = apparmor(pod, c)
	return out, err
}

func checkNonRoot(pod *v1.Pod, c *v1.Container, sc *v1.SecurityContext, image Image) error {
	if !isTrue(sc.RunAsNonRoot) {
		return nil
	}
	where := fmt.Sprintf("(pod: %q, container: %s)", Desc(pod), c.Name)
	switch {
	case sc.RunAsUser != nil && *sc.RunAsUser == 0:
		return fmt.Errorf("container's runAsUser breaks non-root policy %s", where)
	case sc.RunAsUser != nil:
		return nil
	case image.UID == nil && image.Username != "":
		return fmt.Errorf("container has runAsNonRoot and image has non-numeric user (%s), cannot verify user is non-root %s", image.Username, where)
	case image.UID != nil && *image.UID == 0:
		return fmt.Errorf("container has runAsNonRoot and image will run as root %s", where)
	case image.UID != nil:
		if why := validation.IsValidUserID(*image.UID); len(why) != 0 {
			return fmt.Errorf("container has runAsNonRoot and image has an invalid user id (%d). (Must be 1-(%d)): %s %s",
				*image.UID, math.MaxInt32, strings.Join(why, "; "), where)
		}
	}
	return nil
}

func (h Host) seccomp(pod *v1.Pod, c *v1.Container) (*runtimeapi.SecurityProfile, error) {
	var profile *v1.SeccompProfile
	if sc := pod.Spec.SecurityContext; sc != nil {
		profile = sc.SeccompProfile
	}
	if sc := c.SecurityContext; sc != nil && sc.SeccompProfile != nil {
		profile = sc.SeccompProfile
	}
	switch {
	case profile != nil && profile.Type == v1.SeccompProfileTypeRuntimeDefault:
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}, nil
	case profile != nil && profile.Type == v1.SeccompProfileTypeLocalhost:
		if profile.LocalhostProfile == nil || *profile.LocalhostProfile == "" {
			return nil, errors.New("localhostProfile must be set if seccompProfile type is Localhost.")
		}
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost,
			LocalhostRef: filepath.Join(h.SeccompDir, *profile.LocalhostProfile)}, nil
	}
	return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}, nil
}

func apparmor(pod *v1.Pod, c *v1.Container) (*runtimeapi.SecurityProfile, error) {
	var profile *v1.AppArmorProfile
	if sc := pod.Spec.SecurityContext; sc != nil {
		profile = sc.AppArmorProfile
	}
	if sc := c.SecurityContext; sc != nil && sc.AppArmorProfile != nil {
		profile = sc.AppArmorProfile
	}
	if profile == nil {
		return nil, nil
	}
	switch profile.Type {
	case v1.AppArmorProfileTypeRuntimeDefault:
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}, nil
	case v1.AppArmorProfileTypeUnconfined:
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}, nil
	case v1.AppArmorProfileTypeLocalhost:
		if profile.LocalhostProfile == nil {
			return nil, errors.New("missing localhost apparmor profile name")
		}
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost,
			LocalhostRef: *profile.LocalhostProfile}, nil
	}
	return nil, fmt.Errorf("unknown apparmor profile type: %q", profile.Type)
}

// namespaces: a container has its own PID namespace unless the Pod shares one.
func namespaces(pod *v1.Pod) *runtimeapi.NamespaceOption {
	ns := &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER}
	if pod.Spec.HostIPC {
		ns.Ipc = runtimeapi.NamespaceMode_NODE
	}
	if pod.Spec.HostNetwork {
		ns.Network = runtimeapi.NamespaceMode_NODE
	}
	switch {
	case pod.Spec.HostPID:
		ns.Pid = runtimeapi.NamespaceMode_NODE
	case isTrue(pod.Spec.ShareProcessNamespace):
		ns.Pid = runtimeapi.NamespaceMode_POD
	}
	return ns
}

func supplementalGroups(pod *v1.Pod) []int64 {
	var groups []int64
	if sc := pod.Spec.SecurityContext; sc != nil {
		if sc.FSGroup != nil {
			groups = append(groups, *sc.FSGroup)
		}
		groups = append(groups, sc.SupplementalGroups...)
	}
	return groups
}

func groupsPolicy(pod *v1.Pod) (runtimeapi.SupplementalGroupsPolicy, error) {
	sc := pod.Spec.SecurityContext
	if sc == nil || sc.SupplementalGroupsPolicy == nil {
		return runtimeapi.SupplementalGroupsPolicy_Merge, nil
	}
	value, ok := runtimeapi.SupplementalGroupsPolicy_value[string(*sc.SupplementalGroupsPolicy)]
	if !ok {
		return 0, fmt.Errorf("unsupported supplementalGroupsPolicy: %s", *sc.SupplementalGroupsPolicy)
	}
	return runtimeapi.SupplementalGroupsPolicy(value), nil
}

func capabilities(c *v1.Capabilities) *runtimeapi.Capability {
	if c == nil {
		return nil
	}
	out := &runtimeapi.Capability{}
	for _, add := range c.Add {
		out.AddCapabilities = append(out.AddCapabilities, string(add))
	}
	for _, drop := range c.Drop {
		out.DropCapabilities = append(out.DropCapabilities, string(drop))
	}
	return out
}

func selinux(o *v1.SELinuxOptions) *runtimeapi.SELinuxOption {
	if o == nil {
		return nil
	}
	return &runtimeapi.SELinuxOption{User: o.User, Role: o.Role, Type: o.Type, Level: o.Level}
}

func int64Value(v *int64) *runtimeapi.Int64Value {
	if v == nil {
		return nil
	}
	return &runtimeapi.Int64Value{Value: *v}
}
