"""Runs a command with the address of an archive in a bucket of a local S3 server.

Usage: with_s3.py COMMAND [ARGUMENT…]
"""

import logging
import os
import subprocess
import sys

import boto3
from moto.server import ThreadedMotoServer

BUCKET = "archive"
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_REGION": "us-east-1",
    "AWS_DEFAULT_REGION": "us-east-1",
}


def main() -> int:
    os.environ.update(CREDENTIALS)
    # It prints a line for each request.
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        endpoint = f"http://{host}:{port}"
        boto3.client("s3", endpoint_url=endpoint).create_bucket(Bucket=BUCKET)
        address = {"AWS_ENDPOINT": endpoint, "AWS_ALLOW_HTTP": "true", "VRAMSCOPE_TEST_ARCHIVE": f"s3://{BUCKET}/runs"}
        return subprocess.run(sys.argv[1:], env=os.environ | address, check=False).returncode
    finally:
        server.stop()


if __name__ == "__main__":
    sys.exit(main())
