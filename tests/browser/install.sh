#!/bin/sh
# Debian's Chromium for the browser tests, where it can be installed; says why where it cannot.
[ -n "$UOTPOOL_CHROMIUM" ] && exit 0
for name in chromium chromium-browser google-chrome google-chrome-stable; do
    command -v $name >/dev/null && exit 0
done
if ! command -v apt-get >/dev/null || [ "$(id -u)" != 0 ]; then
    echo "no browser, and it can be installed by root on Debian only: the browser tests will not be run"
    exit 0
fi
echo "installing chromium"
if ! { apt-get update -qq && apt-get install -qq -y --no-install-recommends chromium; } >/dev/null; then
    echo "chromium could not be installed: the browser tests will not be run"
fi
