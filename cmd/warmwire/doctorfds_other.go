// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package main

import (
	"github.com/warmwire/warmwire/internal/clientenv"
	"github.com/warmwire/warmwire/internal/config"
)

// descriptorFindings has none: this system has no such limit.
func descriptorFindings(*config.Config) []clientenv.Finding { return nil }
