#!/bin/sh
# What an operator does once: a token with which the server joins, and a tenant with a quota
# and a token, each in a folder of its own. What is there already stays as it is.
set -eu
umask 077

: "${GPUPOOL_POOL:?must be the URL of the manager}"
: "${GPUPOOL_POOL_FINGERPRINT:?must be the file with the fingerprint of its certificate}"
: "${ADMIN_TOKEN_FILE:?must be the file that the manager makes at its first start}"
: "${JOIN:?must be the folder for the token with which the server joins}"
: "${NODE:?must be the name of the server in the pool}"
: "${TOKENS:?must be the folder for the token of the tenant}"

for _ in $(seq 60); do
  test -s "$ADMIN_TOKEN_FILE" && break
  sleep 1
done

# By it clients know the manager, whose certificate nobody has signed.
cat "$GPUPOOL_POOL_FINGERPRINT" > "$TOKENS/pool.fingerprint"
test -s "$JOIN/join.token" ||
  gpupool node join --name "$NODE" --lifetime 1d --out "$JOIN/join.token" \
    --token-file "$ADMIN_TOKEN_FILE"
test -s "$TOKENS/example.token" ||
  gpupool tenant create example --gpus 4 --memory 1GiB --compute 200% \
    --token-out "$TOKENS/example.token" --token-file "$ADMIN_TOKEN_FILE"
