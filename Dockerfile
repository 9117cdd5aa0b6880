# The gateway in a container: no build tools, no root, nothing written outside /data.
#
#   docker build -t model-gateway .
#   docker run -p 127.0.0.1:8080:8080 -v gateway:/data --read-only --tmpfs /tmp --cap-drop ALL model-gateway
#
# `docker logs` shows the first API key. Commands run inside: docker exec NAME gateway health
FROM python:3.13-slim AS build
WORKDIR /src
COPY scripts/pins.txt scripts/pins-dev.txt scripts/
RUN python -m venv /opt/gateway
# The extras postgres and s3: they need no other package, and are pinned with what the tests run on.
RUN sed -n '/^asyncpg==/,/[^\\]$/p; /^obstore==/,/[^\\]$/p' scripts/pins-dev.txt > scripts/pins-postgres.txt
RUN /opt/gateway/bin/pip install --no-cache-dir --require-hashes --only-binary :all: -r scripts/pins.txt -r scripts/pins-postgres.txt
COPY pyproject.toml README.md LICENSE mkdocs.yml ./
COPY config config
COPY docs docs
COPY gateway gateway
RUN /opt/gateway/bin/pip install --no-index --no-deps --no-build-isolation .

FROM python:3.13-slim
RUN useradd --system --uid 10001 --home-dir /data --no-create-home --shell /usr/sbin/nologin gateway
# The slim image has no compiled standard library, and no user of it may write there: each start would compile it anew.
RUN python -m compileall -q -x '/(test|lib2to3)/' "$(python -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')"
RUN install -d -o 10001 -g 10001 -m 0700 /data /media
COPY --from=build /opt/gateway /opt/gateway
ENV PATH=/opt/gateway/bin:/usr/local/bin:/usr/bin:/bin
ENV GATEWAY_DATA=/data
ENV GATEWAY_SERVER__HOST=0.0.0.0
ENV PYTHONDONTWRITEBYTECODE=1
WORKDIR /data
USER 10001
VOLUME /data
EXPOSE 8080
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8080/healthz', timeout=4)"]
ENTRYPOINT ["gateway"]
CMD ["serve"]
