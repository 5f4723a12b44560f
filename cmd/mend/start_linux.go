package main

// canRunContainers is false where every node is simulated.
const canRunContainers = true

// startCommand is what a person types who wants a cluster.
const startCommand = "sudo mend up"
