// Package rollout tests the Deployment and ReplicaSet loops together in process,
// against the real API server. Pods have no containers behind them: the test binds
// them and says what their agent would say.
package rollout
