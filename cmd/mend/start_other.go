//go:build !linux

package main

const canRunContainers = false

const startCommand = "mend up --simulate 1"
