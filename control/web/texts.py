"""The page's words in English and Chinese, and how times and sizes are written. A small dictionary, no framework."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

LANGUAGES = ("en", "zh")

_EN = {
    "html_lang": "en",
    "title": "Fleet",
    "switch_to": "中文",
    "switch_lang": "zh",
    "switch_label": "这一页的中文版",
    "skip": "Skip to the backends",
    "as_of": "As of {time}.",
    "live": "Live",
    "connecting": "Connecting…",
    "lost": "No connection to the control plane: what you see is old. Trying again…",
    "no_script": "Without JavaScript the page does not update itself: reload it for newer facts.",
    "summary": "{ready} of {all} backends ready",
    "edge": "Edge",
    "edge_running": "runs",
    "edge_absent": "does not run",
    "edge_silent": "does not answer",
    "edge_hint": "The edge does not run. Start it with:",
    "edge_says": "The edge runs, but does not answer the control plane as it should:",
    "generation": "Generation",
    "fleet_version": "Fleet version",
    "workers": "Workers",
    "worker": "worker {pid}, generation {generation}",
    "exiting": "finishing its requests",
    "machine": "This machine",
    "cpu": "CPU",
    "cpu_value": "{percent} of {count} CPUs, load {load}",
    "memory": "Memory",
    "memory_value": "{used} of {total} in use",
    "backends": "Backends",
    "backends_caption": "Every engine of the fleet as the edge sees it, with the process where it is ours",
    "backend": "Backend",
    "model": "Model",
    "state": "State",
    "since": "Since",
    "in_flight": "In flight",
    "requests": "Requests",
    "engine": "Engine process",
    "restarts": "Restarts",
    "not_ours": "not started here",
    "no_process": "no process",
    "pid": "pid {pid}",
    "reports": "reports",
    "alarm": "not as asked:",
    "last_death": "last death:",
    "phases": "its start:",
    "use_gpu": "GPU use, minute by minute for an hour",
    "use_cpu": "CPU use, minute by minute for an hour",
    "seconds": "{n} s",
    "unknown_count": "not known",
    "never": "–",
    "models": "Models",
    "models_caption": "The names that clients may send",
    "aliases": "Aliases",
    "loras": "LoRA names",
    "policy": "Policy",
    "ready_of": "Backends ready",
    "ready_count": "{ready} of {all}",
    "none": "none",
    "no_backends": "The fleet has no backend yet. Add one to fleet.yaml.",
    "leaving": "{id} ({address}) has left the fleet, {count} sequences still run there",
    "leaving_one": "{id} ({address}) has left the fleet, 1 sequence still runs there",
    "json": "The same as JSON",
    "state_starting": "starting",
    "state_ready": "ready",
    "state_busy": "busy",
    "state_draining": "draining",
    "state_suspect": "suspect",
    "state_down": "down",
    "state_misconfigured": "misconfigured",
    "state_unknown": "unknown",
    "note_no_edge": "the edge does not answer",
    "note_not_in_edge": "not in the running edge yet: make render, then make reload",
    "note_not_in_fleet": "no longer in fleet.yaml: make render, then make reload",
    "tunnel": "SSH tunnel to {to}",
    "tunnel_connecting": "is being connected",
    "tunnel_up": "is up",
    "tunnel_down": "is down",
    "tunnel_stopped": "has ended",
    "ago_now": "just now",
    "ago_s": "{n} s ago",
    "ago_min": "{n} min ago",
    "ago_h": "{n} h ago",
    "ago_d": "{n} d ago",
}

_ZH = {
    "html_lang": "zh-Hans",
    "title": "集群",
    "switch_to": "English",
    "switch_lang": "en",
    "switch_label": "This page in English",
    "skip": "跳到后端列表",
    "as_of": "截至 {time}。",
    "live": "实时",
    "connecting": "正在连接…",
    "lost": "与控制面的连接已断开，当前内容是旧的。正在重试…",
    "no_script": "未启用 JavaScript，页面不会自动更新：请重新加载查看最新状态。",
    "summary": "{all} 个后端中 {ready} 个就绪",
    "edge": "边缘（Edge）",
    "edge_running": "运行中",
    "edge_absent": "未运行",
    "edge_silent": "没有回应",
    "edge_hint": "边缘没有运行。启动命令：",
    "edge_says": "边缘在运行，但没有正确回应控制面：",
    "generation": "配置代次",
    "fleet_version": "集群版本",
    "workers": "工作进程",
    "worker": "工作进程 {pid}，代次 {generation}",
    "exiting": "正在处理完剩余请求",
    "machine": "本机",
    "cpu": "CPU",
    "cpu_value": "{percent}，共 {count} 个 CPU，负载 {load}",
    "memory": "内存",
    "memory_value": "已用 {used}，共 {total}",
    "backends": "后端",
    "backends_caption": "边缘所见的每个推理引擎；由本机启动的还列出其进程",
    "backend": "后端",
    "model": "模型",
    "state": "状态",
    "since": "开始于",
    "in_flight": "进行中",
    "requests": "请求数",
    "engine": "引擎进程",
    "restarts": "重启次数",
    "not_ours": "不由本机启动",
    "no_process": "没有进程",
    "pid": "进程号 {pid}",
    "reports": "上报名称",
    "alarm": "与要求不符：",
    "last_death": "上次退出：",
    "use_gpu": "最近一小时每分钟的 GPU 使用率",
    "use_cpu": "最近一小时每分钟的 CPU 使用率",
    "phases": "启动过程：",
    "seconds": "{n} 秒",
    "unknown_count": "未知",
    "never": "–",
    "models": "模型",
    "models_caption": "客户端可以使用的名称",
    "aliases": "别名",
    "loras": "LoRA 名称",
    "policy": "策略",
    "ready_of": "就绪后端",
    "ready_count": "{ready} / {all}",
    "none": "无",
    "no_backends": "集群里还没有后端。请在 fleet.yaml 中添加。",
    "leaving": "{id}（{address}）已离开集群，仍有 {count} 个序列在其上运行",
    "leaving_one": "{id}（{address}）已离开集群，仍有 1 个序列在其上运行",
    "json": "同样内容的 JSON",
    "state_starting": "启动中",
    "state_ready": "就绪",
    "state_busy": "繁忙",
    "state_draining": "排空中",
    "state_suspect": "可疑",
    "state_down": "不可用",
    "state_misconfigured": "配置错误",
    "state_unknown": "未知",
    "note_no_edge": "边缘没有回应",
    "note_not_in_edge": "运行中的边缘还没有它：先 make render，再 make reload",
    "note_not_in_fleet": "fleet.yaml 中已没有它：先 make render，再 make reload",
    "tunnel": "到 {to} 的 SSH 隧道",
    "tunnel_connecting": "正在连接",
    "tunnel_up": "已连通",
    "tunnel_down": "已断开",
    "tunnel_stopped": "已结束",
    "ago_now": "刚刚",
    "ago_s": "{n} 秒前",
    "ago_min": "{n} 分钟前",
    "ago_h": "{n} 小时前",
    "ago_d": "{n} 天前",
}

TEXTS: Mapping[str, Mapping[str, str]] = {"en": _EN, "zh": _ZH}

#: States and phases of an engine process in Chinese; one that is not here stays as the supervisor says it.
PROCESS_ZH: Mapping[str, str] = {
    "installing": "安装中",
    "starting": "启动中",
    "ready": "就绪",
    "failed": "失败",
    "stopped": "已停止",
    "stopping": "停止中",
    "loading weights": "加载权重",
    "compiling": "编译中",
    "sizing KV cache": "计算 KV 缓存大小",
    "warming up": "预热中",
    "pulling": "拉取镜像",
    "created": "已创建",
    "listing models": "核对模型",
    "first token": "首个词元",
    "serving": "服务中",
    "cannot start": "无法启动",
    "port taken": "端口被占用",
    "given up": "已放弃重启",
    "draining": "排空中",
}


class Words:
    """The texts of one language. ``words("key", n=3)`` fills the gaps; an unknown key is a KeyError."""

    def __init__(self, language: str) -> None:
        self.language = language if language in TEXTS else "en"
        self._texts = TEXTS[self.language]

    def __call__(self, key: str, **values: object) -> str:
        return self._texts[key].format(**values) if values else self._texts[key]

    def process(self, text: str) -> str:
        """A word of the supervisor (state or phase of a process) in this language."""
        return PROCESS_ZH.get(text, text) if self.language == "zh" else text

    def ago(self, since: float | None, now: float) -> str:
        """How long ago, in the largest unit that fits; both in Unix seconds."""
        if since is None:
            return self("never")
        seconds = max(0, int(now - since))
        for limit, unit, key in ((2, 1, "ago_now"), (60, 1, "ago_s"), (3600, 60, "ago_min"), (86400, 3600, "ago_h")):
            if seconds < limit:
                return self(key, n=seconds // unit)
        return self("ago_d", n=seconds // 86400)


def exact(since: float | None) -> str:
    """The moment in this machine's time zone, to the second; empty for none."""
    if since is None:
        return ""
    return datetime.fromtimestamp(since).astimezone().strftime("%Y-%m-%d %H:%M:%S %z")


def iso(since: float) -> str:
    """The moment as HTML's ``datetime`` wants it."""
    return datetime.fromtimestamp(since).astimezone().isoformat(timespec="seconds")


def clock(moment: float) -> str:
    """Hours, minutes and seconds in this machine's time zone."""
    return datetime.fromtimestamp(moment).strftime("%H:%M:%S")


def size(count: int) -> str:
    """Bytes in binary units, one digit after the point."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"
