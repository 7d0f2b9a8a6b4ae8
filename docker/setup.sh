#!/bin/sh
# What an operator does once: a token with which the server joins, and a tenant with a quota
# and a token. What is there already stays as it is.
set -eu
umask 077

: "${GPUPOOL_POOL:?must be the URL of the manager}"
: "${ADMIN_TOKEN_FILE:?must be the file that the manager makes at its first start}"
: "${TOKENS:?must be the folder for the tokens that are made}"

for _ in $(seq 60); do
  test -s "$ADMIN_TOKEN_FILE" && break
  sleep 1
done

test -s "$TOKENS/join.token" ||
  gpupool node join --lifetime none --out "$TOKENS/join.token" --token-file "$ADMIN_TOKEN_FILE"
test -s "$TOKENS/example.token" ||
  gpupool tenant create example --gpus 4 --memory 1GiB --compute 200% \
    --token-out "$TOKENS/example.token" --token-file "$ADMIN_TOKEN_FILE"
