// SPDX-License-Identifier: Apache-2.0

// Package check holds the manifests of deploy/kubernetes against the Kubernetes
// types and against what Warmwire needs from a pod.
//
// It is a module of its own, so that the Kubernetes libraries never enter the
// product's dependencies. It reads the bytes it is given and nothing else; it
// never talks to a cluster.
package check

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

// A Set is what a manifest file holds.
type Set struct {
	ConfigMaps []corev1.ConfigMap
	Pods       []corev1.PodSpec // of the Deployments, DaemonSets and Jobs
	Secrets    []corev1.Secret

	labels   []map[string]string // of the pods
	selected []labelled          // by NetworkPolicies and PodMonitors
}

// A labelled is what selects pods by their labels, and a port of them by its name; ""
// = no port.
type labelled struct {
	kind, port string
	labels     map[string]string
}

// A podMonitor is what is used of the Prometheus operator's kind, whose types are no
// part of Kubernetes.
type podMonitor struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Selector  metav1.LabelSelector `json:"selector"`
		Endpoints []struct {
			Port          string `json:"port"`
			Path          string `json:"path"`
			Interval      string `json:"interval"`
			Authorization struct {
				Type        string                   `json:"type"`
				Credentials corev1.SecretKeySelector `json:"credentials"`
			} `json:"authorization"`
		} `json:"podMetricsEndpoints"`
	} `json:"spec"`
}

// Decode reads all documents of a manifest file. A field that the Kubernetes
// type does not have is an error, as is a kind that is not expected here.
func Decode(r io.Reader) (Set, error) {
	var set Set
	documents := utilyaml.NewYAMLReader(bufio.NewReader(r))
	for n := 1; ; n++ {
		text, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return set, nil
		}
		if err != nil {
			return set, fmt.Errorf("document %d: %w", n, err)
		}
		if err := set.add(text); err != nil {
			return set, fmt.Errorf("document %d: %w", n, err)
		}
	}
}

func (s *Set) add(text []byte) error {
	var kind metav1.TypeMeta
	if err := yaml.Unmarshal(text, &kind); err != nil {
		return err
	}
	switch kind.APIVersion + " " + kind.Kind {
	case "v1 ConfigMap":
		var m corev1.ConfigMap
		if err := yaml.UnmarshalStrict(text, &m); err != nil {
			return err
		}
		s.ConfigMaps = append(s.ConfigMaps, m)
	case "apps/v1 Deployment":
		var d appsv1.Deployment
		if err := yaml.UnmarshalStrict(text, &d); err != nil {
			return err
		}
		if err := selects(d.Spec.Selector, d.Spec.Template.Labels); err != nil {
			return err
		}
		s.addPod(d.Spec.Template)
	case "apps/v1 DaemonSet":
		var d appsv1.DaemonSet
		if err := yaml.UnmarshalStrict(text, &d); err != nil {
			return err
		}
		if err := selects(d.Spec.Selector, d.Spec.Template.Labels); err != nil {
			return err
		}
		s.addPod(d.Spec.Template)
	case "batch/v1 Job":
		var j batchv1.Job
		if err := yaml.UnmarshalStrict(text, &j); err != nil {
			return err
		}
		s.addPod(j.Spec.Template)
	default:
		return s.addBeside(kind, text)
	}
	return nil
}

func (s *Set) addPod(pod corev1.PodTemplateSpec) {
	s.Pods = append(s.Pods, pod.Spec)
	s.labels = append(s.labels, pod.Labels)
}

// addBeside adds what is no pod.
func (s *Set) addBeside(kind metav1.TypeMeta, text []byte) error {
	switch kind.APIVersion + " " + kind.Kind {
	case "v1 Secret":
		var m corev1.Secret
		if err := yaml.UnmarshalStrict(text, &m); err != nil {
			return err
		}
		s.Secrets = append(s.Secrets, m)
	case "networking.k8s.io/v1 NetworkPolicy":
		var p networkingv1.NetworkPolicy
		if err := yaml.UnmarshalStrict(text, &p); err != nil {
			return err
		}
		s.selected = append(s.selected, labelled{"NetworkPolicy", "", p.Spec.PodSelector.MatchLabels})
	case "monitoring.coreos.com/v1 PodMonitor":
		var m podMonitor
		if err := yaml.UnmarshalStrict(text, &m); err != nil {
			return err
		}
		for _, e := range m.Spec.Endpoints {
			s.selected = append(s.selected, labelled{"PodMonitor", e.Port, m.Spec.Selector.MatchLabels})
		}
	default:
		return fmt.Errorf("kind %q of %q is not expected here", kind.Kind, kind.APIVersion)
	}
	return nil
}

// selects is the rule by which the API server refuses a Deployment or DaemonSet that would
// not find its own pods.
func selects(selector *metav1.LabelSelector, labels map[string]string) error {
	s, err := metav1.LabelSelectorAsSelector(selector)
	if err != nil {
		return err
	}
	if selector == nil || s.Empty() {
		return errors.New("it selects nothing")
	}
	for key, value := range selector.MatchLabels {
		if labels[key] != value {
			return fmt.Errorf("selector %s=%s does not match the pod's labels %v", key, value, labels)
		}
	}
	return nil
}

// Faults returns what would go wrong with Warmwire in the pods of a set, in
// words; none means that it is fine.
func (s Set) Faults() []string {
	var faults []string
	for _, pod := range s.Pods {
		c, native := sidecar(pod)
		if c == nil {
			faults = append(faults, "a pod has no container named warmwire")
			continue
		}
		faults = append(faults, probeFaults(c, native)...)
		faults = append(faults, hardeningFaults(c)...)
		faults = append(faults, userFaults(pod, c)...)
		faults = append(faults, s.mountFaults(pod, c)...)
		faults = append(faults, drainFaults(pod, s.config(), native)...)
	}
	for _, l := range s.selected {
		faults = append(faults, s.selectionFaults(l)...)
	}
	return faults
}

// selectionFaults wants one pod that a policy or a monitor finds, with its port.
func (s Set) selectionFaults(l labelled) []string {
	for i, labels := range s.labels {
		if selects(&metav1.LabelSelector{MatchLabels: l.labels}, labels) != nil {
			continue
		}
		c, _ := sidecar(s.Pods[i])
		if l.port == "" || c != nil && slices.ContainsFunc(c.Ports, func(p corev1.ContainerPort) bool { return p.Name == l.port }) {
			return nil
		}
		return []string{fmt.Sprintf("%s: the pod has no port named %q", l.kind, l.port)}
	}
	return []string{l.kind + " finds no pod of this file"}
}

// userFaults lets root in only where a folder of the host must be written, without a
// capability then (hardeningFaults).
func userFaults(pod corev1.PodSpec, c *corev1.Container) []string {
	if c.SecurityContext == nil || c.SecurityContext.RunAsUser == nil {
		return []string{"does not say its user"}
	}
	hostPath := slices.ContainsFunc(pod.Volumes, func(v corev1.Volume) bool { return v.HostPath != nil })
	if user := *c.SecurityContext.RunAsUser; user != 65532 && (user != 0 || !hostPath) {
		return []string{"does not run as the image's user 65532"}
	}
	return nil
}

func sidecar(pod corev1.PodSpec) (c *corev1.Container, native bool) {
	for i, c := range pod.InitContainers {
		if c.Name == "warmwire" {
			return &pod.InitContainers[i], true
		}
	}
	for i, c := range pod.Containers {
		if c.Name == "warmwire" {
			return &pod.Containers[i], false
		}
	}
	return nil, false
}

func probeFaults(c *corev1.Container, native bool) []string {
	var faults []string
	if native && (c.RestartPolicy == nil || *c.RestartPolicy != corev1.ContainerRestartPolicyAlways) {
		faults = append(faults, "an init container without restartPolicy Always is no sidecar: the app would never start")
	}
	for name, probe := range map[string]*corev1.Probe{"startup": c.StartupProbe, "liveness": c.LivenessProbe} {
		faults = append(faults, oneProbe(name, probe)...)
	}
	if c.ReadinessProbe != nil {
		faults = append(faults, oneProbe("readiness", c.ReadinessProbe)...)
	}
	slices.Sort(faults)
	return faults
}

func oneProbe(name string, probe *corev1.Probe) []string {
	switch {
	case probe == nil:
		return []string{"no " + name + " probe"}
	case probe.Exec == nil:
		return []string{name + " probe is no exec: the listeners are on the pod's loopback"}
	case len(probe.Exec.Command) < 2 || probe.Exec.Command[0] != "/warmwire" || probe.Exec.Command[1] != "health":
		return []string{fmt.Sprintf("%s probe runs %q", name, probe.Exec.Command)}
	case name == "liveness" && !slices.Contains(probe.Exec.Command, "--live"):
		return []string{"liveness probe asks for readiness: a draining Warmwire would be killed"}
	case probe.TimeoutSeconds < 4: // warmwire health gives up after 3 s
		return []string{name + " probe ends before warmwire health does"}
	}
	return nil
}

func hardeningFaults(c *corev1.Container) []string {
	var faults []string
	s := c.SecurityContext
	if s == nil {
		return []string{"no securityContext"}
	}
	if s.ReadOnlyRootFilesystem == nil || !*s.ReadOnlyRootFilesystem {
		faults = append(faults, "root file system can be written")
	}
	if s.AllowPrivilegeEscalation == nil || *s.AllowPrivilegeEscalation {
		faults = append(faults, "privileges can be raised")
	}
	if s.Capabilities == nil || !slices.Contains(s.Capabilities.Drop, "ALL") {
		faults = append(faults, "capabilities are kept")
	}
	if c.Resources.Limits.Memory().IsZero() {
		faults = append(faults, "no memory limit")
	}
	return faults
}

// mountFaults follows the file named by -c to the ConfigMap that holds it.
func (s Set) mountFaults(pod corev1.PodSpec, c *corev1.Container) []string {
	i := slices.Index(c.Args, "-c")
	if i < 0 || i+1 == len(c.Args) {
		return []string{"args name no configuration"}
	}
	for _, mount := range c.VolumeMounts {
		file, ok := strings.CutPrefix(c.Args[i+1], mount.MountPath+"/")
		if !ok {
			continue
		}
		for _, volume := range pod.Volumes {
			if volume.Name == mount.Name && volume.ConfigMap != nil && s.has(volume.ConfigMap.Name, file) {
				return nil
			}
		}
	}
	return []string{"configuration " + c.Args[i+1] + " is mounted from no ConfigMap of this file"}
}

func (s Set) has(name, file string) bool {
	for _, m := range s.ConfigMaps {
		if _, ok := m.Data[file]; m.Name == name && ok {
			return true
		}
	}
	return false
}

// A drain is the part of Warmwire's configuration that a pod must leave time for.
type drain struct {
	Drain struct {
		Wait    metav1.Duration `json:"wait"`
		Timeout metav1.Duration `json:"timeout"`
	} `json:"drain"`
}

func (s Set) config() drain {
	var d drain
	for _, m := range s.ConfigMaps {
		// A wrong file leaves zeros, which drainFaults reports.
		_ = yaml.Unmarshal([]byte(m.Data["warmwire.yaml"]), &d)
	}
	return d
}

func drainFaults(pod corev1.PodSpec, d drain, native bool) []string {
	var faults []string
	grace := int64(30) // the kubelet's default
	if pod.TerminationGracePeriodSeconds != nil {
		grace = *pod.TerminationGracePeriodSeconds
	}
	if d.Drain.Timeout.Duration == 0 {
		faults = append(faults, "the ConfigMap does not say drain.timeout")
	}
	if need := (d.Drain.Wait.Duration + d.Drain.Timeout.Duration).Seconds(); float64(grace) <= need {
		faults = append(faults, fmt.Sprintf("grace period of %d s, the drain alone may take %g s", grace, need))
	}
	if !native && d.Drain.Wait.Duration == 0 {
		faults = append(faults, "an ordinary sidecar gets SIGTERM with its app: drain.wait must be longer than zero")
	}
	return faults
}
