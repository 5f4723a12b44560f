package app

import (
	"time"
)

// Status is what `mend status --json` prints. Memory is resident bytes.
type Status struct {
	Running    bool              `json:"running"`
	Version    string            `json:"version"`
	Kubernetes string            `json:"kubernetes"`
	Instance   string            `json:"instance"`
	Server     string            `json:"server,omitempty"`
	PID        int               `json:"pid,omitempty"`
	Since      time.Time         `json:"since,omitzero"`
	Components []ComponentStatus `json:"components,omitempty"`
	Nodes      []NodeStatus      `json:"nodes,omitempty"`
	Memory     map[string]int64  `json:"memoryBytes,omitempty"`
	Paths      map[string]string `json:"paths"`
}

// ComponentStatus is one part of the process, or one of its children.
type ComponentStatus struct {
	Name    string `json:"name"`
	Healthy bool   `json:"healthy"`
	Message string `json:"message,omitempty"`
}

// NodeStatus is one node as the API has it.
type NodeStatus struct {
	Name    string `json:"name"`
	Ready   bool   `json:"ready"`
	Message string `json:"message,omitempty"`
	Kubelet string `json:"kubeletVersion"`
	Address string `json:"address"`
	Pods    int    `json:"pods"`
}
