// Package scheduling tests the scheduler, nodehealth, tainteviction and
// apiservice in process, against the real API server. Nodes are objects without
// machines behind them: the test says what their agents would say.
package scheduling
