// Package testkit gives tests the real API server on a temporary store. There is
// no fake clientset: what a test asserts is what a client of mend would see.
package testkit
