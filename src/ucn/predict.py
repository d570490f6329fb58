"""stub"""
import torch
def choose_device(name):
    return torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
