# The official image of a server with the module loaded, and with the program slock.
#
#     docker build --build-arg SERVER=redis:8 --tag redis-slock .          also redis:7, valkey/valkey:8, valkey/valkey:9
#     docker run --rm --publish 127.0.0.1:6379:6379 redis-slock
#
# The digests are those of rust:1.98.1-bookworm and redis:8.10.1. `docker buildx imagetools inspect TAG` tells that of another.
# Not the images of Alpine: what is built here needs the C library of Debian, as old as that of its release 12 or later.
ARG SERVER=redis:8@sha256:298e5b3bc566bade82f46ad5511777a4a07a294097ce16ada2f6a42be5239df5

FROM rust:1-bookworm@sha256:93ce27a88655056a51dbdd8f5f2d7ddc071c7b0070fb288a37b5a285fc83971e AS build
# The bindings to the module API are generated with libclang.
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends libclang-dev && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY . .
RUN cargo build --release --locked --package slock-module --package slock-cli && strip target/release/slock && strip --strip-debug target/release/libslock.so

# hadolint ignore=DL3006
FROM ${SERVER}
COPY --from=build /source/target/release/libslock.so /usr/lib/redis/modules/slock.so
COPY --from=build /source/target/release/slock /usr/local/bin/slock
# The images put the name of their server before options: so this serves Redis and Valkey.
CMD ["--loadmodule", "/usr/lib/redis/modules/slock.so", "--appendonly", "yes"]
