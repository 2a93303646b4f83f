// The dashboard, drawn with Grafana's own components and theme, over a Prometheus.
//
//   index.html?prometheus=http://127.0.0.1:9090&minutes=10
//
// Grafana itself is on no registry that we use, its components are (@grafana/ui). What a
// server of it does is done here: the queries, their variables, legends and reductions.
// Fields are displayed by @grafana/data, by the units and thresholds of the dashboard.
import { createRoot } from "react-dom/client";
import {
  EventBusSrv, FieldType, ThemeContext, createTheme, dateTime, getDisplayProcessor,
  renderLegendFormat,
} from "@grafana/data";
import {
  BarGauge, BigValue, GlobalStyles, PanelChrome, PanelContextProvider, TimeSeries,
} from "@grafana/ui";
import { set } from "lodash";
import "uplot/dist/uPlot.min.css";
import dashboard from "../../etc/grafana/dashboard.json";

const COLUMN = 60, ROW = 38, GAP = 8;
const DRAWN = { stat: Stat, timeseries: Series, bargauge: Bars };
const CLASSIC = { mode: "palette-classic" }; // Grafana's own default
const theme = createTheme({ colors: { mode: "dark" } });
const options = new URLSearchParams(location.search);
const to = Math.floor(Date.now() / 1000);
const from = to - 60 * Number(options.get("minutes") ?? 10);
const step = Math.max(1, Math.round((to - from) / 200));
const timeRange = {
  from: dateTime(from * 1000), to: dateTime(to * 1000),
  raw: { from: "now-10m", to: "now" },
};
const VALUES = {
  $job: ".*", $__rate_interval: `${Math.max(30, 4 * step)}s`, $__range: `${to - from}s`,
};

async function ask(target) {
  const query = target.expr.replace(/\$\w+/g, (name) => VALUES[name]);
  const ask = target.instant
    ? { path: "query", time: to } : { path: "query_range", start: from, end: to, step };
  const { path, ...words } = { query, ...ask };
  const url = `${options.get("prometheus")}/api/v1/${path}?${new URLSearchParams(words)}`;
  const answer = await (await fetch(url)).json();
  if (answer.status !== "success") throw new Error(`${query}: ${answer.error}`);
  return answer.data.result.map((one) => frame(target, one));
}

/** What a data source makes of one series: times and values, named by the legend. */
function frame(target, { metric, value, values }) {
  const points = values ?? [value];
  const name = target.legendFormat
    ? renderLegendFormat(target.legendFormat, metric) : target.refId;
  return {
    refId: target.refId, name, length: points.length,
    fields: [
      { name: "Time", type: FieldType.time, config: {}, values: points.map(([at]) => at * 1000) },
      { name, type: FieldType.number, config: { displayName: name },
        values: points.map(([, text]) => Number(text)) },
    ],
  };
}

/** As the panel's options have it: unit, colours, limits. */
function configured(panel, frames) {
  let index = 0;
  for (const one of frames)
    for (const field of one.fields) {
      if (field.type === FieldType.number) {
        field.config = structuredClone(
          { color: CLASSIC, ...panel.fieldConfig.defaults, ...field.config });
        for (const { matcher, properties } of panel.fieldConfig.overrides)
          if (matcher.options === one.name) // byName: there is no other in use
            for (const { id, value } of properties) set(field.config, id, value);
        field.state = { seriesIndex: index++, displayName: field.config.displayName };
      }
      field.display = getDisplayProcessor({ field, theme, timeZone: "utc" });
    }
  return frames;
}

function Stat({ panel, frames, width, height }) {
  const field = frames[0]?.fields[1];
  if (!field) return <p>No data</p>;
  return <BigValue theme={theme} width={width} height={height} {...panel.options}
    value={field.display(field.values.at(-1))} />;
}

function Series({ panel, frames, width, height }) {
  if (!frames.length) return <p>No data</p>;
  return <TimeSeries frames={frames} width={width} height={height} timeRange={timeRange}
    timeZone="utc" legend={panel.options.legend} options={panel.options} />;
}

function Bars({ panel, frames, width, height }) {
  if (!frames.length) return <p>No data</p>;
  const tall = Math.min(40, height / frames.length);
  return frames.map(({ fields: [, field], name }) =>
    <BarGauge key={name} theme={theme} width={width} height={tall}
      field={field.config} display={field.display} {...panel.options}
      value={{ ...field.display(field.values.at(-1)), title: name }} />);
}

function Panel({ panel, frames }) {
  const { x, y, w, h } = panel.gridPos;
  const [width, height] = [w * COLUMN - GAP, h * ROW - GAP];
  const Drawn = DRAWN[panel.type];
  return <div className="panel" style={{ left: x * COLUMN + GAP, top: y * ROW + GAP }}>
    {!Drawn ? <h3>{panel.title}</h3>
      : <PanelChrome title={panel.title} description={panel.description}
          width={width} height={height}>
        {(inner, tall) => <Drawn {...{ panel, frames, width: inner, height: tall }} />}
      </PanelChrome>}
  </div>;
}

const asked = await Promise.all(dashboard.panels.map(async (panel) =>
  configured(panel, (await Promise.all((panel.targets ?? []).map(ask))).flat())));
createRoot(document.getElementById("root")).render(
  <ThemeContext.Provider value={theme}>
    <GlobalStyles />
    <PanelContextProvider value={{ eventBus: new EventBusSrv() }}>
      {dashboard.panels.map((panel, number) =>
        <Panel key={panel.id} panel={panel} frames={asked[number]} />)}
    </PanelContextProvider>
  </ThemeContext.Provider>,
);
document.title = "drawn";
