// SPDX-License-Identifier: Apache-2.0
// From the file's names to places: each graph becomes arrays in which nodes say
// by number what they read and write. Functions of the file are written out,
// graphs in attributes become graphs of their own, which take what they name of
// the graph around them (captures).
#include <search.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "onnx/onnx_internal.h"

// ---- The list of operators ----

static const choir__onnx_operator_t operators[] = {
#define ENTRY_(domain, Name, function, where, needs, states)      \
  {domain, #Name, choir__onnx_op_##function, CHOIR__ONNX_##where, \
   needs,  states},
#define CHOIR__ONNX_OPERATOR ENTRY_
#include "onnx/operators/operators.def"
#undef ENTRY_
};
enum { OPERATOR_COUNT = sizeof operators / sizeof *operators };

static int compare_operators(const void* a, const void* b) {
  const choir__onnx_operator_t* const* x = a;
  const choir__onnx_operator_t* const* y = b;
  const int names = strcmp((*x)->name, (*y)->name);
  return names ? names : strcmp((*x)->domain, (*y)->domain);
}

// ---- Building ----

typedef struct builder_s {
  choir_onnx_t* onnx;
  const choir__onnx_operator_t* sorted[OPERATOR_COUNT];
  FILE* missing;  // names of operators that there are not
  int32_t missing_count;
} builder_t;

// Names of a graph, or of a function where it is called.
typedef struct names_s {
  void* tree;             // of name_t, by tsearch
  struct names_s* outer;  // of the graph around; NULL: nothing is seen
  choir__onnx_graph_t* graph;
} names_t;

typedef struct name_s {
  const char* text;
  int32_t place;
} name_t;

static int compare_names(const void* a, const void* b) {
  return strcmp(((const name_t*)a)->text, ((const name_t*)b)->text);
}

static void* get(builder_t* builder, size_t bytes) {
  void* memory = choir_arena_alloc(builder->onnx->arena, bytes ? bytes : 1);
  if (memory) memset(memory, 0, bytes);
  return memory;
}

static choir_status_t no_memory(void) {
  return CHOIR_ERROR(OUT_OF_MEMORY, "onnx: no memory for the graph");
}

// Functions that call functions could make a short file take any memory.
static choir_status_t count_names(builder_t* builder, size_t count) {
  if (count <= (size_t)(CHOIR__ONNX_MAX_NAMES - builder->onnx->total_names)) {
    builder->onnx->total_names += (int32_t)count;
    return NULL;
  }
  return CHOIR_ERROR(INVALID_ARGUMENT,
                     "onnx: more than %d names, functions written out",
                     CHOIR__ONNX_MAX_NAMES);
}

// Room for one more entry of an array of the arena.
static choir_status_t grow(builder_t* builder, void** array, size_t width,
                           int32_t count, int32_t* capacity) {
  if (count < *capacity) return NULL;
  const int32_t larger = *capacity ? 2 * *capacity : 16;
  void* moved = get(builder, (size_t)larger * width);
  if (!moved) return no_memory();
  if (count > 0) memcpy(moved, *array, (size_t)count * width);
  *array = moved;
  *capacity = larger;
  return NULL;
}

static choir_status_t add_place(builder_t* builder, choir__onnx_graph_t* graph,
                                const char* name, int32_t* out_place) {
  *out_place = -1;
  void* places = graph->places;
  CHOIR_TRY(grow(builder, &places, sizeof *graph->places, graph->place_count,
                 &graph->place_capacity));
  graph->places = places;
  *out_place = graph->place_count++;
  graph->places[*out_place] =
      (choir__onnx_place_t){.name = name, .param = -1, .outer = -1};
  return NULL;
}

// place -1: the name stands for nothing.
static choir_status_t bind(builder_t* builder, names_t* names, const char* text,
                           int32_t place) {
  name_t* name = get(builder, sizeof *name);
  if (!name) return no_memory();
  *name = (name_t){.text = text, .place = place};
  name_t** found = tsearch(name, &names->tree, compare_names);
  if (!found) return no_memory();
  if (*found != name)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "onnx: '%s' is given twice; each name stands for one "
                       "value",
                       text);
  return NULL;
}

static choir_status_t new_name(builder_t* builder, names_t* names,
                               const char* text, int32_t* out_place) {
  CHOIR_TRY(add_place(builder, names->graph, text, out_place));
  return bind(builder, names, text, *out_place);
}

// *out_place -1: the name is unknown, or of what is absent (*out_found).
static choir_status_t look_up(builder_t* builder, names_t* names,
                              const char* text, int32_t* out_place,
                              bool* out_found) {
  *out_place = -1;
  const name_t key = {.text = text};
  name_t** found = tfind(&key, &names->tree, compare_names);
  *out_found = found != NULL;
  if (found) {
    *out_place = (*found)->place;
    return NULL;
  }
  if (!names->outer) return NULL;
  int32_t outer;
  CHOIR_TRY(look_up(builder, names->outer, text, &outer, out_found));
  if (outer < 0) return NULL;
  choir__onnx_graph_t* graph = names->graph;
  CHOIR_TRY(count_names(builder, 1));
  CHOIR_TRY(new_name(builder, names, text, out_place));
  graph->places[*out_place].outer = outer;
  void* captures = graph->captures;
  CHOIR_TRY(grow(builder, &captures, sizeof *graph->captures,
                 graph->capture_count, &graph->capture_capacity));
  graph->captures = captures;
  graph->captures[graph->capture_count++] =
      (choir__onnx_capture_t){.outer = outer, .inner = *out_place};
  return NULL;
}

// The entry of an initialiser's place, wherever it is seen from; NULL: the
// place is no constant of the file's graph.
static choir__onnx_place_t* find_constant(choir__onnx_graph_t* graph,
                                          int32_t place) {
  choir__onnx_place_t* entry = &graph->places[place];
  for (; entry->outer >= 0; entry = &graph->places[entry->outer])
    graph = graph->outer;
  return entry->constant && !graph->outer ? entry : NULL;
}

// ---- Nodes ----

static choir_status_t build_graph(builder_t* builder,
                                  const Onnx__GraphProto* proto, names_t* outer,
                                  const choir__onnx_site_t* site, int32_t depth,
                                  choir__onnx_graph_t** out_graph);
static choir_status_t add_node(builder_t* builder, names_t* names,
                               const Onnx__NodeProto* proto,
                               const choir__onnx_site_t* site, int32_t depth);

static choir_status_t read_inputs(builder_t* builder, names_t* names,
                                  const Onnx__NodeProto* proto,
                                  int32_t* places) {
  for (size_t i = 0; i < proto->n_input; ++i) {
    const char* text = proto->input[i];
    places[i] = -1;
    if (!text || !*text) continue;
    bool is_found = false;
    CHOIR_TRY(look_up(builder, names, text, &places[i], &is_found));
    if (!is_found)
      return CHOIR_ERROR(
          INVALID_ARGUMENT,
          "onnx: node '%s' (%s) reads '%s', which nothing before "
          "it gives",
          proto->name ? proto->name : "", proto->op_type, text);
  }
  return NULL;
}

static void free_names(names_t* names) {
  while (names->tree) {
    name_t* name = *(name_t**)names->tree;
    (void)tdelete(name, &names->tree, compare_names);
  }
}

// The nodes of a function in the place of its call.
static choir_status_t write_out(builder_t* builder, names_t* names,
                                names_t* inside, const Onnx__NodeProto* proto,
                                const Onnx__FunctionProto* function,
                                const choir__onnx_site_t* outer,
                                int32_t depth) {
  if (proto->n_input > function->n_input ||
      proto->n_output > function->n_output)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "onnx: function %s takes %zu inputs and gives %zu "
                       "results; a call has %zu and %zu",
                       function->name, function->n_input, function->n_output,
                       proto->n_input, proto->n_output);
  CHOIR_TRY(count_names(builder, function->n_input));
  int32_t* places = get(builder, sizeof(int32_t) * (proto->n_input + 1));
  choir__onnx_site_t* site = get(builder, sizeof *site);
  if (!places || !site) return no_memory();
  *site = (choir__onnx_site_t){proto, function, outer};
  CHOIR_TRY(read_inputs(builder, names, proto, places));
  for (size_t i = 0; i < function->n_input; ++i)
    CHOIR_TRY(bind(builder, inside, function->input[i],
                   i < proto->n_input ? places[i] : -1));
  for (size_t i = 0; i < function->n_node; ++i)
    CHOIR_TRY(add_node(builder, inside, function->node[i], site, depth + 1));
  for (size_t i = 0; i < proto->n_output; ++i) {
    if (!proto->output[i] || !*proto->output[i]) continue;
    int32_t place;
    bool is_found;
    CHOIR_TRY(look_up(builder, inside, function->output[i], &place, &is_found));
    if (!is_found)
      return CHOIR_ERROR(INVALID_ARGUMENT,
                         "onnx: function %s does not compute its result '%s'",
                         function->name, function->output[i]);
    CHOIR_TRY(bind(builder, names, proto->output[i], place));
  }
  return NULL;
}

static choir_status_t note_missing(builder_t* builder,
                                   const Onnx__NodeProto* proto,
                                   const char* domain, int64_t version) {
  if (++builder->missing_count <= 50)
    fprintf(builder->missing, "%s%.100s of %.100s %lld (node '%.100s')",
            builder->missing_count > 1 ? ", " : "", proto->op_type,
            *domain ? domain : "ai.onnx", (long long)version,
            proto->name ? proto->name : "");
  return NULL;
}

// ---- Gradient ----

static choir_status_t read_place(builder_t* builder, names_t* names,
                                 const choir__onnx_node_t* node,
                                 ProtobufCBinaryData name, int32_t* out_place) {
  char* text = get(builder, name.len + 1);
  if (!text) return no_memory();
  if (name.len > 0) memcpy(text, name.data, name.len);
  bool is_found;
  CHOIR_TRY(look_up(builder, names, text, out_place, &is_found));
  if (*out_place >= 0) return NULL;
  return CHOIR_ERROR(INVALID_ARGUMENT,
                     "onnx: node '%s' (Gradient) names '%s', which nothing "
                     "before it gives",
                     node->label, text);
}

// What attributes xs, zs and y name.
static choir_status_t read_slice(builder_t* builder, names_t* names,
                                 choir__onnx_node_t* node) {
  const Onnx__AttributeProto* xs = choir__onnx_find_attr(node, "xs", NULL);
  const Onnx__AttributeProto* zs = choir__onnx_find_attr(node, "zs", NULL);
  const Onnx__AttributeProto* y = choir__onnx_find_attr(node, "y", NULL);
  const size_t x_count = xs ? xs->n_strings : 0;
  const size_t z_count = zs ? zs->n_strings : 0;
  if (x_count == 0 || !y || x_count + z_count != (size_t)node->in_count)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "onnx: node '%s' (Gradient) has %d inputs, %zu xs, %zu "
                       "zs and %s y; needs one x or more, y, and an input for "
                       "each x and z",
                       node->label, node->in_count, x_count, z_count,
                       y ? "a" : "no");
  const choir__onnx_graph_t* graph = names->graph;
  CHOIR_TRY(count_names(builder, (size_t)node->in_count +
                                     (size_t)graph->node_count +
                                     (size_t)graph->place_count));
  node->slice = get(builder, sizeof *node->slice);
  if (!node->slice) return no_memory();
  node->slice->given = get(builder, sizeof(int32_t) * (size_t)node->in_count);
  if (!node->slice->given) return no_memory();
  node->slice->x_count = (int32_t)x_count;
  for (size_t i = 0; i < x_count + z_count; ++i)
    CHOIR_TRY(
        read_place(builder, names, node,
                   i < x_count ? xs->strings[i] : zs->strings[i - x_count],
                   &node->slice->given[i]));
  CHOIR_TRY(read_place(builder, names, node, y->s, &node->slice->y));
  size_t work;
  CHOIR_TRY(choir__onnx_find_slice(builder->onnx, graph, node, &work));
  return count_names(builder, work);
}

static choir_status_t fill_node(builder_t* builder, names_t* names,
                                const Onnx__NodeProto* proto,
                                const choir__onnx_site_t* site, int32_t depth,
                                choir__onnx_node_t* node) {
  node->inputs = get(builder, sizeof(int32_t) * proto->n_input);
  node->outputs = get(builder, sizeof(int32_t) * proto->n_output);
  node->bodies = get(builder, sizeof(void*) * proto->n_attribute);
  if (!node->inputs || !node->outputs || !node->bodies) return no_memory();
  node->in_count = (int32_t)proto->n_input;
  node->out_count = (int32_t)proto->n_output;
  CHOIR_TRY(read_inputs(builder, names, proto, node->inputs));
  for (int32_t i = 0; i < node->in_count && i < 32 && node->op; ++i) {
    choir__onnx_place_t* constant =
        node->inputs[i] < 0 ? NULL
                            : find_constant(names->graph, node->inputs[i]);
    if (!constant) continue;
    // For now param says what is known of it: -2: read by the host, -3: a
    // state.
    if (node->op->needs >> i & 1) constant->param = -2;
    if (node->op->states >> i & 1 && constant->param != -2)
      constant->param = -3;
  }
  for (size_t i = 0; i < proto->n_attribute; ++i)
    if (proto->attribute[i]->g)
      CHOIR_TRY(build_graph(builder, proto->attribute[i]->g, names, site,
                            depth + 1, &node->bodies[i]));
  if (node->op && node->op->call == choir__onnx_op_gradient)
    CHOIR_TRY(read_slice(builder, names, node));
  for (int32_t i = 0; i < node->out_count; ++i) {
    node->outputs[i] = -1;
    if (proto->output[i] && *proto->output[i])
      CHOIR_TRY(new_name(builder, names, proto->output[i], &node->outputs[i]));
  }
  return NULL;
}

static choir_status_t add_node(builder_t* builder, names_t* names,
                               const Onnx__NodeProto* proto,
                               const choir__onnx_site_t* site, int32_t depth) {
  if (depth > CHOIR__ONNX_MAX_DEPTH)
    return CHOIR_ERROR(
        INVALID_ARGUMENT,
        "onnx: graphs and functions lie in one another more than "
        "%d deep (a function that calls itself?)",
        CHOIR__ONNX_MAX_DEPTH);
  if (++builder->onnx->total_nodes > CHOIR__ONNX_MAX_NODES)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "onnx: more than %d nodes, functions written out",
                       CHOIR__ONNX_MAX_NODES);
  CHOIR_TRY(count_names(builder,
                        proto->n_input + proto->n_output + proto->n_attribute));
  CHOIR_TRY(choir__onnx_check_list(proto->n_attribute, "attributes"));
  if (!proto->op_type)
    return CHOIR_ERROR(INVALID_ARGUMENT, "onnx: a node names no operator");
  const Onnx__FunctionProto* function =
      choir__onnx_find_function(builder->onnx, proto);
  if (function) {
    names_t inside = {.graph = names->graph};
    choir_status_t status =
        write_out(builder, names, &inside, proto, function, site, depth);
    free_names(&inside);
    return status;
  }
  const char* domain = choir__onnx_domain(proto->domain);
  const choir__onnx_operator_t key = {.domain = domain, .name = proto->op_type};
  const choir__onnx_operator_t* at = &key;
  const choir__onnx_operator_t** found = bsearch(
      &at, builder->sorted, OPERATOR_COUNT, sizeof(void*), compare_operators);
  choir__onnx_node_t node = {
      .proto = proto,
      .site = site,
      .op = found ? *found : NULL,
      .version = choir__onnx_version(builder->onnx, site, domain)};
  if (!found) CHOIR_TRY(note_missing(builder, proto, domain, node.version));
  char* label = NULL;
  if (!proto->name || !*proto->name) {
    label = get(builder, strlen(proto->op_type) + 16);
    if (!label) return no_memory();
    sprintf(label, "%s_%d", proto->op_type, builder->onnx->total_nodes);
  }
  node.label = label ? label : proto->name;
  CHOIR_TRY(fill_node(builder, names, proto, site, depth, &node));
  choir__onnx_graph_t* graph = names->graph;
  void* nodes = graph->nodes;
  CHOIR_TRY(grow(builder, &nodes, sizeof node, graph->node_count,
                 &graph->node_capacity));
  graph->nodes = nodes;
  graph->nodes[graph->node_count++] = node;
  return NULL;
}

// ---- Graphs ----

static choir_status_t add_constants(builder_t* builder, names_t* names,
                                    const Onnx__GraphProto* proto) {
  choir__onnx_graph_t* graph = names->graph;
  CHOIR_TRY(count_names(builder, proto->n_initializer +
                                     proto->n_sparse_initializer +
                                     proto->n_input + proto->n_output));
  for (size_t i = 0; i < proto->n_initializer; ++i) {
    Onnx__TensorProto* tensor = proto->initializer[i];
    int32_t place;
    CHOIR_TRY(
        new_name(builder, names, tensor->name ? tensor->name : "", &place));
    CHOIR_TRY(choir__onnx_make_tensor(builder->onnx, tensor,
                                      &graph->places[place].constant,
                                      &graph->places[place].type));
  }
  for (size_t i = 0; i < proto->n_sparse_initializer; ++i) {
    const Onnx__SparseTensorProto* tensor = proto->sparse_initializer[i];
    int32_t place;
    CHOIR_TRY(new_name(
        builder, names,
        tensor->values && tensor->values->name ? tensor->values->name : "",
        &place));
    CHOIR_TRY(choir__onnx_make_sparse(builder->onnx, tensor,
                                      &graph->places[place].constant,
                                      &graph->places[place].type));
  }
  return NULL;
}

static choir_status_t add_inputs(builder_t* builder, names_t* names,
                                 const Onnx__GraphProto* proto) {
  choir__onnx_graph_t* graph = names->graph;
  graph->inputs = get(builder, sizeof(int32_t) * proto->n_input);
  graph->infos = get(builder, sizeof(void*) * proto->n_input);
  if (!graph->inputs || !graph->infos) return no_memory();
  for (size_t i = 0; i < proto->n_input; ++i) {
    const char* text = proto->input[i]->name ? proto->input[i]->name : "";
    const name_t key = {.text = text};
    name_t** found = tfind(&key, &names->tree, compare_names);
    // It has an initialiser, as before version 4 of the format all had.
    if (found && graph->places[(*found)->place].constant) continue;
    graph->infos[graph->in_count] = proto->input[i];
    CHOIR_TRY(new_name(builder, names, text, &graph->inputs[graph->in_count]));
    ++graph->in_count;
  }
  return NULL;
}

static choir_status_t fill_graph(builder_t* builder, names_t* names,
                                 const Onnx__GraphProto* proto,
                                 const choir__onnx_site_t* site,
                                 int32_t depth) {
  choir__onnx_graph_t* graph = names->graph;
  CHOIR_TRY(add_constants(builder, names, proto));
  CHOIR_TRY(add_inputs(builder, names, proto));
  for (size_t i = 0; i < proto->n_node; ++i)
    CHOIR_TRY(add_node(builder, names, proto->node[i], site, depth));
  graph->outputs = get(builder, sizeof(int32_t) * proto->n_output);
  if (!graph->outputs) return no_memory();
  graph->out_count = (int32_t)proto->n_output;
  for (size_t i = 0; i < proto->n_output; ++i) {
    const char* text = proto->output[i]->name ? proto->output[i]->name : "";
    bool is_found;
    CHOIR_TRY(look_up(builder, names, text, &graph->outputs[i], &is_found));
    if (!is_found)
      return CHOIR_ERROR(INVALID_ARGUMENT,
                         "onnx: nothing gives the graph's result '%s'", text);
  }
  return NULL;
}

static choir_status_t build_graph(builder_t* builder,
                                  const Onnx__GraphProto* proto, names_t* outer,
                                  const choir__onnx_site_t* site, int32_t depth,
                                  choir__onnx_graph_t** out_graph) {
  if (depth > CHOIR__ONNX_MAX_DEPTH)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "onnx: graphs lie in one another more than %d deep",
                       CHOIR__ONNX_MAX_DEPTH);
  choir__onnx_graph_t* graph = get(builder, sizeof *graph);
  if (!graph) return no_memory();
  *out_graph = graph;
  graph->outer = outer ? outer->graph : NULL;
  graph->next = builder->onnx->graphs;
  builder->onnx->graphs = graph;
  names_t names = {.outer = outer, .graph = graph};
  choir_status_t status = fill_graph(builder, &names, proto, site, depth);
  free_names(&names);
  return status;
}

void choir__onnx_release_graphs(choir_onnx_t* onnx) {
  for (choir__onnx_graph_t* graph = onnx->graphs; graph; graph = graph->next)
    for (int32_t i = 0; i < graph->place_count; ++i)
      choir_tensor_release(graph->places[i].moved);
  onnx->graphs = NULL;
}

// ---- Parameters ----

static bool is_learnt(const choir__onnx_place_t* place) {
  if (!place->constant || place->param == -2) return false;
  const choir_view_t* view = choir_tensor_view(place->constant);
  const bool is_float =
      place->type == CHOIR_ONNX_FLOAT || place->type == CHOIR_ONNX_DOUBLE ||
      place->type == CHOIR_ONNX_FLOAT16 || place->type == CHOIR_ONNX_BFLOAT16;
  return is_float && (place->param == -3 || choir_view_count(view) > 1);
}

static choir_status_t find_params(builder_t* builder) {
  choir_onnx_t* onnx = builder->onnx;
  choir__onnx_graph_t* graph = onnx->graph;
  const size_t room = (size_t)graph->place_count;
  onnx->param_places = get(builder, sizeof(int32_t) * room);
  onnx->params = get(builder, sizeof(void*) * room);
  if (!onnx->param_places || !onnx->params) return no_memory();
  for (int32_t i = 0; i < graph->place_count; ++i) {
    choir__onnx_place_t* place = &graph->places[i];
    if (!is_learnt(place)) {
      place->param = -1;
      continue;
    }
    // Coded until its trainable flag is set from it.
    const bool is_state = place->param == -3;
    place->param = onnx->param_count;
    onnx->param_places[onnx->param_count++] = is_state ? -1 - i : i;
  }
  return NULL;
}

choir_status_t choir__onnx_build(choir_onnx_t* onnx) {
  char* text = NULL;
  size_t bytes = 0;
  builder_t builder = {.onnx = onnx, .missing = open_memstream(&text, &bytes)};
  if (!builder.missing) return no_memory();
  for (int32_t i = 0; i < OPERATOR_COUNT; ++i)
    builder.sorted[i] = &operators[i];
  qsort(builder.sorted, OPERATOR_COUNT, sizeof(void*), compare_operators);
  choir_status_t status = choir__onnx_sort_functions(onnx);
  if (!status)
    status =
        build_graph(&builder, onnx->proto->graph, NULL, NULL, 0, &onnx->graph);
  fclose(builder.missing);
  if (!status && builder.missing_count > 0)
    status =
        CHOIR_ERROR(UNIMPLEMENTED,
                    "onnx: Choir has not got %d operator%s: "
                    "%s%s",
                    builder.missing_count, builder.missing_count > 1 ? "s" : "",
                    text, builder.missing_count > 50 ? ", ..." : "");
  free(text);
  if (!status) status = find_params(&builder);
  if (!status) {
    onnx->result_types =
        get(&builder, sizeof(int32_t) * (size_t)(onnx->graph->out_count + 1));
    if (!onnx->result_types) status = no_memory();
    onnx->results = onnx->graph->outputs;
    onnx->result_count = onnx->graph->out_count;
  }
  if (!status) status = choir__onnx_join_layers(onnx);
  if (!status) status = choir__onnx_find_idle(onnx);
  if (!status) status = choir__onnx_make_memos(onnx);
  return status;
}
