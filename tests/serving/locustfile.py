"""Clients for locust: each asks for a random point, or a short line, again and again."""

from __future__ import annotations

import os
import random

from locust import HttpUser, between, task


class Client(HttpUser):
    """One client."""

    wait_time = between(0.0, 0.05)
    path = os.environ["LANDSCAPE_POINTS"]
    headers = {"authorization": f"Bearer {os.environ['LANDSCAPE_TOKEN']}"}  # noqa: RUF012

    @task(5)
    def point(self) -> None:
        point = [random.uniform(-1, 1), random.uniform(-1, 1)]
        with self.client.post(self.path, json={"points": [point]}, headers=self.headers, catch_response=True) as reply:
            if reply.status_code == 200 and reply.json()["points"] != [point]:
                reply.failure("answered for another point")

    @task
    def line(self) -> None:
        body = {"from": [-1, random.random()], "to": [1, random.random()], "count": 5}
        self.client.post(self.path.replace("/points", "/line"), json=body, headers=self.headers)
