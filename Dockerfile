# The images of Trainmaster: `dispatcher` for all its processes, where the command says which one runs, and `agent`.
#
#   docker build --target dispatcher -t trainmaster-dispatcher .
#   docker build --target agent -t trainmaster-agent .
#   docker run --rm trainmaster-dispatcher serve --help

ARG PYTHON=3.11.16-slim-trixie

ARG NODE=24.19.0-trixie-slim

FROM node:${NODE} AS page
WORKDIR /build/dispatcher/web
COPY dispatcher/web/package.json dispatcher/web/package-lock.json dispatcher/web/.npmrc ./
RUN npm ci --omit=dev
COPY dispatcher/web ./
RUN npm run build

FROM python:${PYTHON} AS wheels
WORKDIR /build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
# uv installs into this environment. It trusts the certificates that the base image trusts, as pip does.
ENV VIRTUAL_ENV=/opt/trainmaster UV_NO_CACHE=1 UV_SYSTEM_CERTS=1
RUN python -m venv --without-pip /opt/trainmaster
# Only locked versions, of files with the hashes that are written there. The checks below fail where a list lacks what is needed.
COPY requirements/build.txt requirements/dispatcher.txt requirements/agent.txt requirements/
RUN pip install --require-hashes --no-deps -r requirements/build.txt
COPY pyproject.toml README.md LICENSE ./
COPY trainmaster trainmaster
COPY dispatcher dispatcher
COPY --from=page /build/dispatcher/trainmaster_dispatcher/web/assets dispatcher/trainmaster_dispatcher/web/assets
COPY agent agent
COPY migrations migrations
RUN pip wheel --no-deps --no-build-isolation --wheel-dir dist . ./dispatcher ./agent ./migrations

FROM wheels AS build-dispatcher
RUN uv pip install --only-binary :all: --require-hashes --no-deps -r requirements/dispatcher.txt
RUN uv pip install --no-deps dist/trainmaster-[0-9]*.whl dist/trainmaster_dispatcher-*.whl dist/trainmaster_migrations-*.whl && uv pip check
RUN /opt/trainmaster/bin/python -m compileall -q /opt/trainmaster/lib

FROM wheels AS build-agent
RUN uv pip install --only-binary :all: --require-hashes --no-deps -r requirements/agent.txt
RUN uv pip install --no-deps dist/trainmaster-[0-9]*.whl dist/trainmaster_agent-*.whl && uv pip check
RUN /opt/trainmaster/bin/python -m compileall -q /opt/trainmaster/lib

FROM python:${PYTHON} AS base
LABEL org.opencontainers.image.title="Trainmaster" \
      org.opencontainers.image.description="Multi-cluster dispatcher for AI and batch jobs" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.licenses="Apache-2.0"
# The ids are fixed, so that the owner of a volume means the same on every machine. A new volume takes the owner of the folder
# that it is mounted on: docker-compose.yml mounts each key by itself, for `admin bootstrap` below /keys, for agents below /agent.
RUN groupadd --gid 10001 trainmaster \
 && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin trainmaster \
 && install --directory --owner 10001 --group 10001 --mode 0700 \
      /keys /keys/admin /keys/agent-private /keys/agent-public /keys/agent-edge \
      /agent /agent/key /agent/state
# Only who reaches a container's own address reaches its metrics.
ENV PATH=/opt/trainmaster/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 TRAINMASTER_METRICS_HOST=0.0.0.0
USER 10001:10001
WORKDIR /tmp
# No init is in the image: Docker and Kubernetes bring their own (init: true, shareProcessNamespace). Every process ends on
# SIGTERM by itself; only an agent with the local runtime needs an init, which buries what its jobs leave behind.
STOPSIGNAL SIGTERM
# Each process has another port and another sign of health: docker-compose.yml and the chart name them.
HEALTHCHECK NONE
ENTRYPOINT ["trainmaster"]
CMD ["--help"]

FROM base AS agent
COPY --from=build-agent /opt/trainmaster /opt/trainmaster

FROM base AS dispatcher
COPY --from=build-dispatcher /opt/trainmaster /opt/trainmaster
