"""A notebook that trains a transformer: its losses are those of one never stopped."""

import json

MODEL = """
import torch
torch.set_num_threads(1)
torch.use_deterministic_algorithms(True)
torch.manual_seed(1)
layer = torch.nn.TransformerEncoderLayer(256, 4, 512, batch_first=True, dropout=0.1)
model = torch.nn.TransformerEncoder(layer, 4).cuda()
head = torch.nn.Linear(256, 64).cuda()
adam = torch.optim.AdamW([*model.parameters(), *head.parameters()], lr=1e-3)
inputs = torch.randn(8, 32, 256, device="cuda")
targets = torch.randint(64, (8 * 32,), device="cuda")
def train(steps):
    losses = []
    for _ in range(steps):
        adam.zero_grad()
        guess = head(model(inputs)).reshape(-1, 64)
        loss = torch.nn.functional.cross_entropy(guess, targets)
        loss.backward(); adam.step(); losses.append(loss.item())
    return losses
"""


def test_training_in_a_notebook_goes_on_bit_for_bit(agent, jupyter, places):
    server = jupyter()
    twin, kernel = server.start_kernel("twin.ipynb"), server.start_kernel("train.ipynb")
    for one in (twin, kernel):
        server.run(one, MODEL)
    expected = json.loads(server.run(twin, "train(30)"))
    seen = json.loads(server.run(kernel, "train(10)"))
    place = server.place
    for number in range(2):
        name = f"notebook-{number}"
        agent.captured(place, name)
        path = f"/v1/sessions/{place.incarnation}/release"
        assert agent.post(path, {"checkpoint": name}).status_code == 204
        place = places("hold")
        assert agent.restore(place, name)[-1].get("tree")
        seen += json.loads(server.run(kernel, "train(10)"))
    assert seen == expected
    assert json.loads(server.run(twin, "[1]")) == [1]
