// SPDX-License-Identifier: Apache-2.0

package mockapi

import (
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"hash"
	"io"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// echo tells what arrived.
func (c *call) echo() error {
	r := c.r
	v := obj{"method": r.Method, "target": r.RequestURI, "host": r.Host, "proto": r.Proto, "content_length": r.ContentLength}
	conn := connOf(r.Context())
	fields, ordered := [][2]string{}, false
	if conn != nil && r.ProtoMajor == 1 {
		fields, ordered = conn.fields(r.Method + " " + r.RequestURI + " " + r.Proto)
	}
	if !ordered {
		fields = [][2]string{}
		for name, values := range r.Header {
			for _, value := range values {
				fields = append(fields, [2]string{name, value})
			}
		}
	}
	v["fields"], v["ordered"] = fields, ordered
	if conn != nil && conn.tls != nil {
		state := conn.tls.ConnectionState()
		v["tls"] = obj{"version": tls.VersionName(state.Version), "alpn": state.NegotiatedProtocol, "server_name": state.ServerName, "resumed": state.DidResume}
	}
	if !c.o.NoRead {
		sum := sha256.New()
		n, err := io.Copy(sum, r.Body)
		if err != nil {
			return c.fail(http.StatusBadRequest, "body: "+err.Error())
		}
		v["body_length"], v["body_sha256"], v["trailer"] = n, hex.EncodeToString(sum.Sum(nil)), r.Trailer
	}
	if err := c.beforeHead(); err != nil {
		return err
	}
	return c.unary(v)
}

// bytes answers with n bytes; with chunk they come in pieces of that size.
func (c *call) bytes() error {
	query := c.r.URL.Query()
	n, err := strconv.ParseInt(query.Get("n"), 10, 64)
	if err != nil || n < 0 {
		return c.fail(http.StatusBadRequest, "want n=bytes")
	}
	chunk, length := int64(16<<10), int(n)
	if s := query.Get("chunk"); s != "" {
		if chunk, err = strconv.ParseInt(s, 10, 32); err != nil || chunk < 1 || chunk > 16<<20 {
			return c.fail(http.StatusBadRequest, "want chunk=bytes, from 1 to 16 MiB")
		}
		length = -1
	}
	if err := c.beforeHead(); err != nil {
		return err
	}
	st, err := c.open("application/octet-stream", length, nil)
	if err != nil {
		return err
	}
	block := make([]byte, min(chunk, n))
	for i := range block {
		block[i] = byte(i * 7)
	}
	for i := 0; n > 0 && err == nil; i++ {
		if err = st.token(i); err == nil {
			err = st.raw(block[:min(chunk, n)])
			n -= min(chunk, n)
		}
	}
	return st.end(err)
}

// files takes an upload, counts and hashes it, and forgets it.
func (c *call) files() error {
	upload := upload{sum: sha256.New()}
	if !c.o.NoRead {
		if err := upload.read(c.r); err != nil {
			return c.fail(http.StatusBadRequest, "upload: "+err.Error())
		}
	}
	if err := c.beforeHead(); err != nil {
		return err
	}
	sum := hex.EncodeToString(upload.sum.Sum(nil))
	return c.unary(obj{
		"id": "file-" + sum[:24], "object": "file", "bytes": upload.n, "created_at": time.Now().Unix(), "filename": upload.name,
		"purpose": upload.purpose, "status": "processed", "size": upload.n, "sha256": sum,
	})
}

type upload struct {
	sum           hash.Hash
	n             int64
	name, purpose string
}

// read takes the part named "file" of a form, or else the whole body.
func (u *upload) read(r *http.Request) error {
	kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || !strings.HasPrefix(kind, "multipart/") {
		u.n, err = io.Copy(u.sum, r.Body)
		return err
	}
	parts, err := r.MultipartReader()
	if err != nil {
		return err
	}
	for {
		part, err := parts.NextPart()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if part.FormName() == "file" {
			u.name = part.FileName()
			if u.n, err = io.Copy(u.sum, part); err != nil {
				return err
			}
			continue
		}
		value, err := io.ReadAll(io.LimitReader(part, 4<<10))
		if err != nil {
			return err
		}
		if part.FormName() == "purpose" {
			u.purpose = string(value)
		}
	}
}
